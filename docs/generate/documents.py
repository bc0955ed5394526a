"""What `--json` prints: the outline of each document, read off a real one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from docs.generate.page import Page, blocks, code, fenced, table
from docs.generate.verbs import commands
from tests.helpers.command_line import typed_in

DATA = "docs/pictures/data"
_JOB = ("--cluster", "local", "--framework", "torchrun", "--nodes", "2", "examples/train_ddp.py")
_GPU = ("--gpu", "h100", "--gpus", "32")

COMMANDS: Mapping[str, Sequence[str]] = {
    "bench collectives": ("bench", "collectives", "--from", f"{DATA}/all_reduce_perf.txt"),
    "bench compute": ("bench", "compute", "--from", f"{DATA}/compute.json"),
    "bench storage": ("bench", "storage", "--from", f"{DATA}/storage.json"),
    "config show": ("config", "show"),
    "diagnose": ("diagnose", f"{DATA}/failed.log"),
    "doctor": ("doctor",),
    "estimate": ("estimate", "--model", "llama-3.1-8b", *_GPU),
    "explain TOPIC": ("explain", "states"),
    "hostfile": ("hostfile", "--hostlist", "n[1-2]", "--slots", "8", "--format", "deepspeed"),
    "images list": ("images", "list"),
    "layout": ("layout", "--tp", "8", "--pp", "2", "--nodes", "4"),
    "lint-env": ("lint-env", f"{DATA}/train.sbatch"),
    "preflight": ("preflight", "--replay", f"{DATA}/rack"),
    "render": ("render", *_JOB),
    "report": ("report",),
    "submit --dry-run": ("submit", "--dry-run", *_JOB),
    "top": ("top", "--cluster", "local", "--once"),
    "topo": ("topo", f"{DATA}/topo.txt"),
}
"""Commands that need no cluster, by the name of their document."""

_OF_THIS_MACHINE = frozenset({"doctor", "top"})
"""Documents whose values are those of the machine where the site is built: shown without them."""

_NAMED = frozenset({"best", "clusters", "expected.estimate", "large"})
"""Mappings whose keys are names, though they look like any others."""

JOB: Mapping[str, str] = {
    "job_id": "the id that the scheduler, or clusterkit, gave it",
    "cluster": "name of its cluster",
    "run_dir": "its run folder",
    "state": "see [states](states.md)",
    "exit_code": "see [exit codes](exit-codes.md); null while it is not known",
    "reason": "what the scheduler says beside the state",
    "name": "name of the job",
    "nodes": "how the command of each node ended; empty until then",
    "failure": "of the first rank that failed: `node`, `rank`, `exit_code`, `message`, `tail`",
    "attempts": "how each start of the job ended, the first one first",
    "hang": "who noticed that the job makes no progress, when, after which step; null without",
    "gpus": "GPUs of all nodes together, or CPU processes; null where nothing is noted of it",
    "submitted_at": "seconds since the epoch",
    "time_limit_s": "its time limit; null for none, or that of the scheduler",
    "started_at": "when the latest attempt began; null before, and where nobody says",
    "ended_at": "when the last node ended; null while the job continues",
    "expected_at": "when Slurm expects to start it; null where it does not say",
    "nccl_network": "what NCCL said it goes over: `name`, `gpudirect`, `warning`; null without",
    "notified": "in lines, [who was told](../how-to/notify.md) that it has ended; null for nobody",
}
"""What `submit --wait`, `wait` and `status JOB` tell of a job."""

_FOLDER = "/home/me/project"
"""What documents show in place of the folder where the site is built."""

_INTRO = (
    "Every verb takes `--json`: one document on stdout, everything else on stderr. `schema` is 1; "
    "it rises when a key goes away or changes its meaning, and new keys may come at any time. "
    "Durations and times are in seconds, unless a name says otherwise."
)
_ERROR = """\
{
  "schema": 1,
  "error": {"problems": [{"message": "...", "position": null, "hint": "..."}]}
}
"""
_LEGEND = (
    "The outlines below are read off documents of this version. `[]` is a list, of which one "
    "element is shown; `*` stands for names that depend on the case, such as those of nodes or "
    "variables."
)


def pages(root: Path) -> Iterator[Page]:
    """Yield the one page of this module."""
    sections = tuple(
        part
        for name, words in COMMANDS.items()
        for part in _section(name, words, document(root, words))
    )
    yield Page(
        path="reference/json.md",
        text=blocks(
            "# JSON documents",
            _INTRO,
            "An error is a document too, with the exit code 2:",
            fenced(_ERROR, "json"),
            "## A job",
            "`submit` prints the first eight as soon as the job is handed over; `submit --wait`, "
            "`wait` and `status JOB` all of them; `status` a list `jobs` of the first eight. The "
            "job of an array has its `array` and `index` as well.",
            table(("key", "meaning"), ((code(key), text) for key, text in JOB.items())),
            "## Others",
            _LEGEND,
            *sections,
        ),
    )


def document(root: Path, words: Sequence[str]) -> dict[str, Any]:
    """Return what a command prints with `--json` where nobody has configured anything.

    Raises:
        RuntimeError: it printed no document.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERKIT_")}
    with tempfile.TemporaryDirectory() as home, mock.patch.dict(os.environ, kept, clear=True):
        # Before what belongs to the script of a job.
        argv = (words[0], *_with_json(words))
        done = typed_in(root, *argv, HOME=home, XDG_CONFIG_HOME=home)
    try:
        found: dict[str, Any] = json.loads(done.stdout.replace(str(root), _FOLDER))
    except ValueError as error:
        raise RuntimeError(f"clusterkit {' '.join(words)}: {done.stderr}") from error
    if "error" in found:
        raise RuntimeError(f"clusterkit {' '.join(words)}: {found['error']}")
    return found


def outline(value: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield path, type and an example of every part of a document."""
    if isinstance(value, dict) and value:
        if path not in _NAMED and all(_is_key(key) for key in value):
            for key, part in value.items():
                yield from outline(part, f"{path}.{key}" if path else key)
        else:
            yield from outline(_richest(value.values()), f"{path}.*")
    elif isinstance(value, list) and value:
        yield from outline(_richest(value), f"{path}[]")
    else:
        yield path, _type(value), _example(value)


def _section(name: str, words: Sequence[str], whole: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield fenced(f"$ clusterkit {words[0]} {' '.join(_with_json(words))}", "console")
    rows = ((code(path), kind, code(example)) for path, kind, example in outline(whole))
    if name in _OF_THIS_MACHINE:
        yield table(("key", "type"), (row[:2] for row in rows))
    else:
        yield table(("key", "type", "such as"), rows)


def _with_json(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words behind the verb, with the flag ahead of what belongs to a script."""
    below = len(words) > 1 and f"{words[0]} {words[1]}" in commands()
    return (words[1], "--json", *words[2:]) if below else ("--json", *words[1:])


def _is_key(name: str) -> bool:
    return name.isidentifier() and name == name.lower()


def _richest(values: Any) -> Any:
    """Return the element that shows most."""
    return max(values, key=lambda value: len(json.dumps(value)))


def _type(value: Any) -> str:
    names = {bool: "true or false", int: "number", float: "number", str: "text", list: "list"}
    return "null" if value is None else names.get(type(value), "mapping")


def _example(value: Any) -> str:
    if value is None or value in ({}, []):
        return ""
    if isinstance(value, float):
        value = float(f"{value:.4g}")
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 50 else text[:46] + ' ..."'
