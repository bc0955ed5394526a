"""What our verbs say of the GPUs of a machine, and how its answers differ from our doubles'."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterkit.preflight.bundle_reader import read_bundle
from clusterkit.preflight.checks import all_checks
from tests.gpu.machine import asked
from tests.helpers.paths import TESTS
from tests.helpers.probe_run import run_probe

DOUBLES = {
    "PATH": f"{TESTS / 'doubles'}{os.pathsep}{os.environ['PATH']}",
    "CLUSTERKIT_GPUS": str(TESTS / "doubles" / "gpus" / "healthy8"),
}
"""The environment in which `nvidia-smi` is our double."""
AREAS = ("GPU", "TOPO")
_RAW = {
    "q": ("-q",),
    "list": ("-L",),
    "topo": ("topo", "-m"),
    "nvlink": ("nvlink", "-s"),
    "nvlink_errors": ("nvlink", "-e"),
}
"""What `nvidia-smi` is asked beside the probes: the files that our double answers from."""
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F-]*\d[0-9a-fA-F.:-]*")
_NOT_ALLOWED = re.compile(r"not permitted|permission|no (?:command|program)|not there|missing")


def look(folder: Path, **env: str) -> dict[str, Any]:
    """Ask preflight, doctor, top and topo, and keep all answers in `folder`, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "raw").mkdir(parents=True)
    for name, words in _RAW.items():
        (folder / "raw" / f"{name}.txt").write_text(_nvidia_smi(words, env))
    here = ("--via", "local", "--hosts", "localhost")
    report = asked("preflight", *here, "--save", folder / "bundle", cwd=folder, **env)
    of_gpus = [one for one in report["findings"] if one["id"].startswith(AREAS)]
    doctor = asked("doctor", cwd=folder, **env)["items"]
    top = asked("top", "--once", "--cluster", "local", cwd=folder, **env)
    return {
        "findings": [_short(one) for one in report["findings"] if one["verdict"] != "skip"],
        "failed": [_short(one) for one in of_gpus if one["verdict"] == "fail"],
        "unknown": [_short(one) for one in of_gpus if _unexplained(one)],
        "doctor": next(item for item in doctor if item["name"] == "nvidia-smi"),
        "top": [gpu for node in top["nodes"] for gpu in node["gpus"]],
        "topo": asked("topo", cwd=folder, **env)["gpus"],
        "differences": differences(folder),
    }


def _short(finding: Mapping[str, Any]) -> str:
    return f"{finding['id']} {finding['verdict']}: {finding['summary']}"


def _unexplained(finding: Mapping[str, Any]) -> bool:
    """Tell whether something stayed unknown that the machine would have told."""
    said = f"{finding['summary']} {finding['evidence']}"
    return finding["verdict"] == "unknown" and not _NOT_ALLOWED.search(said)


def _nvidia_smi(words: tuple[str, ...], env: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["nvidia-smi", *words],
        env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.stdout + done.stderr


def differences(folder: Path) -> dict[str, dict[str, list[str]]]:
    """Return, by probe, the fields that only this machine or only our double has.

    A field is a name of a column or of a line, with its numbers left out.
    """
    bundle = read_bundle(folder / "bundle")
    probes = {probe.name: probe for check in all_checks() for probe in check.probes}
    answers = {
        name: (output.stdout, run_probe(probes[name], bundle.job, env=DOUBLES).stdout)
        for name, output in bundle.replies[0].outputs.items()
        if name.startswith("nvidia-")
    }
    for name, words in _RAW.items():
        real = (folder / "raw" / f"{name}.txt").read_text()
        answers[f"nvidia-smi {' '.join(words)}"] = real, _nvidia_smi(words, DOUBLES)
    found = {}
    for name, (real, double) in answers.items():
        here, there = fields_of(real), fields_of(double)
        if here != there:
            found[name] = {"only here": sorted(here - there), "only double": sorted(there - here)}
    return found


def fields_of(text: str) -> frozenset[str]:
    """Return what an answer is made of: columns of a header, names before a colon, other words."""
    fields = set()
    for line in re.sub(r"\x1b\[\d+m", "", text).splitlines():
        name, colon, _value = line.partition(" : ")
        parts = [name] if colon else re.split(r"[,\t]|: ", line)
        fields |= {_NUMBER.sub("#", part).strip() for part in parts}
    return frozenset(field for field in fields if re.search(r"[A-Za-z]", field))
