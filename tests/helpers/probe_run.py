"""Run probes for real, and read what checks say of the answers."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.checks.base import Check, Evidence, Result
from clusterkit.transport.probe import Output, PreflightJob, Probe
from clusterkit.transport.script import compose
from tests.helpers.answers import read_answer
from tests.helpers.needs import require

SHELLS = [
    pytest.param(("sh",), id="sh"),
    pytest.param(("dash",), id="dash"),
    pytest.param(("bash", "--posix"), id="bash"),
    pytest.param(("busybox", "sh"), id="busybox"),
]
"""Every snippet has to run in all of these; one that is not installed is skipped."""


def run_probe(
    probe: Probe[Any],
    job: PreflightJob,
    *,
    shell: Sequence[str] = ("sh",),
    env: Mapping[str, str] | None = None,
) -> Output:
    """Return what one probe prints on this machine."""
    require(shell[0])
    snippet = probe.snippet(job)
    assert snippet is not None
    began = time.monotonic()
    done = subprocess.run(
        [*shell, "-c", snippet],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=60,
        env=None if env is None else dict(env),
    )
    return Output(
        stdout=done.stdout,
        stderr=done.stderr,
        exit_code=done.returncode,
        seconds=time.monotonic() - began,
    )


def run_compound(
    probes: Sequence[Probe[Any]], job: PreflightJob, *, words: Sequence[str] = ("sh", "-s")
) -> Mapping[str, Output]:
    """Return what `probes` print through the compound script, fed to `words`."""
    compound = compose(probes, job, token="ck0")
    done = subprocess.run(
        list(words), input=compound.script, capture_output=True, text=True, check=False, timeout=60
    )
    answer = read_answer(done.stdout, compound)
    assert answer is not None
    assert answer.complete, done.stderr
    return answer.outputs


@cache
def named(name: str) -> Check:
    """Return the check of this name."""
    return next(one for one in all_checks() if one.name == name)


def rulings(check: Check, evidence: Evidence) -> dict[str | None, Result]:
    """Return the result of each node; None is the job."""
    found = list(check.judge(evidence))
    assert len({node for node, _ in found}) == len(found), "a node has two results"
    return dict(found)


def verdicts(check: Check, evidence: Evidence) -> dict[str | None, str]:
    """Return the verdict on each node."""
    return {node: str(result.verdict) for node, result in rulings(check, evidence).items()}
