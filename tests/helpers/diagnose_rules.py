"""Rules for the tests of diagnose's engine, which must not depend on those that ship."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from clusterkit.observe.diagnose.rules import Rule, read_rules

_REST = {"do": "Do it.", "source": "here", "examples": ["x"], "healthy": ["x"]}
TEXTS: Mapping[str, Mapping[str, Any]] = {
    "gpu-memory": {
        "title": "a GPU ran out of memory",
        "role": "cause",
        "priority": 60,
        "needs": ["CUDA out of memory"],
        "patterns": [r"CUDA out of memory\. Tried to allocate (?P<wanted>\S+ GiB)"],
        "unless": ["retrying"],
        "says": "It wanted {wanted}.",
        "before": 2,
        "after": 1,
    },
    "disk-full": {
        "title": "a disk is full",
        "role": "cause",
        "needs": ["No space left on device"],
        "patterns": ["No space left on device"],
        "says": "Nothing more can be written.",
    },
    "time-out": {
        "title": "a collective timed out",
        "role": "symptom",
        "priority": 40,
        "needs": ["collective operation timeout"],
        "patterns": ["collective operation timeout"],
        "says": "It waited.",
    },
    "exception": {
        "title": "the script raised {kind}",
        "role": "symptom",
        "priority": 10,
        "needs": ["Error: "],
        "patterns": [r"^(?P<kind>\w+Error): "],
        "says": "{kind}.",
    },
    "exit-code": {
        "title": "it ended with {code}",
        "role": "symptom",
        "priority": 5,
        "needs": ["clusterkit fact: exit"],
        "patterns": [r"^clusterkit fact: exit=(?P<code>\d+)$"],
        "says": "Nobody knows why.",
    },
    "closed": {
        "title": "connection closed",
        "role": "consequence",
        "needs": ["Connection closed by peer"],
        "patterns": ["Connection closed by peer"],
        "says": "The other end has gone.",
        "alone": True,
    },
    "nan": {
        "title": "the loss is NaN",
        "role": "cause",
        "silent": True,
        "times": 3,
        "within": 10,
        "resets": [r"step \d+ loss \d"],
        "needs": ["loss nan"],
        "patterns": [r"step (?P<step>\d+) loss nan"],
        "says": "From step {step} on.",
    },
    "missing": {
        "title": "{module} cannot be imported",
        "role": "cause",
        "needs": ["No module named"],
        "patterns": [r"No module named '(?P<module>\w+)'"],
        "says": "{module} is missing.",
    },
    "missing-on-some": {
        "title": "{module} is not on all nodes",
        "role": "cause",
        "priority": 60,
        "compare": "some-nodes",
        "needs": ["No module named"],
        "patterns": [r"No module named '(?P<module>\w+)'"],
        "says": "{module} is on some nodes only.",
    },
    "versions": {
        "title": "{what} differs",
        "role": "cause",
        "priority": 70,
        "compare": "differs",
        "needs": ["version: "],
        "patterns": [r"(?P<what>\w+) version: (?P<value>\S+)"],
        "says": "{values}.",
    },
    "killed": {
        "title": "a process was killed",
        "role": "symptom",
        "priority": 30,
        "needs": ["clusterkit fact: signal="],
        "patterns": ["^clusterkit fact: signal=9$"],
        "says": "Somebody sent SIGKILL.",
    },
    "time-limit": {
        "title": "the job reached its time limit",
        "role": "cause",
        "priority": 90,
        "needs": ["clusterkit fact: state="],
        "patterns": ["^clusterkit fact: state=timeout$"],
        "says": "It was not done.",
    },
}


def engine_rules(folder: Path) -> tuple[Rule, ...]:
    """Write the rules into a folder, and read them back."""
    folder.mkdir(exist_ok=True)
    for name, text in TEXTS.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**_REST, **text}))
    return read_rules(folder)


def root_cause(host: str, rank: int, at: str = "2026-11-22_13:59:12") -> str:
    """Return what torchrun says of the rank that failed first."""
    return f"""\
Root Cause (first observed failure):
[0]:
  time      : {at}
  host      : {host}
  rank      : {rank} (local_rank: 1)
  exitcode  : 1 (pid: 4711)
"""
