"""`preflight` as a user types it, on bundles and on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterkit import __version__
from clusterkit.errors import RemoteError
from clusterkit.preflight import gate
from clusterkit.preflight.bundle import Bundle, write_bundle
from clusterkit.probes.base import PreflightJob, Reach, ReachProblem
from clusterkit.transport.base import Reply

Verb = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def verb(tmp_path: Path) -> Verb:
    """Run `clusterkit preflight` in a folder of its own."""

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "clusterkit", "preflight", *words],
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path), "COLUMNS": "80", "NO_COLOR": "1", **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def kept(folder: Path, *, kind: str = "ssh", **problems: ReachProblem | None) -> str:
    """Write a bundle whose nodes were reached, or not, and return its folder."""
    replies = tuple(
        Reply(node=node, reach=Reach(via="ssh", problem=problem, detail="no"))
        for node, problem in problems.items()
    )
    job = PreflightJob(hosts=tuple(problems), kind=kind, asked_by=__version__)
    write_bundle(folder, Bundle(job=job, replies=replies, collected_at=1.0, seconds=1.0))
    return str(folder)


@pytest.mark.parametrize("words", [("--select", "GPU,IB"), ("--ignore", "SSH"), ("--strict",)])
def test_nodes_that_nobody_reached_are_never_usable(
    verb: Verb, tmp_path: Path, words: tuple[str, ...]
) -> None:
    folder = kept(tmp_path / "b", n1=ReachProblem.TIMEOUT, n2=ReachProblem.SCHEDULER)
    done = verb("--replay", folder, *words, "--json", "--write-hostfile", "good")
    document = json.loads(done.stdout)
    assert (done.returncode, document["usable"]) == (1, [])
    assert not (tmp_path / "good").exists()


def test_a_node_that_cannot_be_checked_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is held against it: the job on it goes on."""
    monkeypatch.setattr(gate, "NODE_CHECKS_S", 0.001)
    with pytest.raises(RemoteError, match="n1: no answer within"):
        gate.examine_here({"job": {"hosts": []}}, "n1")
