"""Run folders that the release before wrote, one of each kind: read, followed, diagnosed, ended.

They stand in `tests/data/runs`: jobs of two nodes, of which the second failed. Their scripts and
`ssh.json` name modules as that release did.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh.layout import read_layout
from tests.attacks.in_process import run as clusterkit
from tests.helpers.paths import TESTS

KEPT = TESTS / "data" / "runs"
KINDS = {"slurm": "b5294e", "ssh": "52a2c7", "local": "fd374e"}
SECOND = {"slurm": "n2", "ssh": "n2", "local": "node-1"}
ENDED = ("state.json", "ended.json", "ends", "nodes", "failures")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give a kind of cluster; its kept run is in `runs`, and no scheduler knows its job."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("squeue", "scancel"):
        script = 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1\n'
        (tools / name).write_text(f"#!/bin/sh\n{script}")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return str(request.param)


def kept(kind: str, *without: str) -> RunFolder:
    """Copy a kept run to where nobody else can write it, without some of its files."""
    (source,) = KEPT.glob(f"kept-*-{KINDS[kind]}")
    path = Path.cwd() / "runs" / source.name
    shutil.copytree(source, path, ignore=shutil.ignore_patterns(*without))
    for one in (path.parent, path, *path.rglob("*")):
        one.chmod(0o700 if one.is_dir() else 0o600)
    return RunFolder(path)


@pytest.mark.parametrize("without", [(), ("state.json",)])
def test_its_end_is_known_by_what_stands_in_it(kind: str, without: tuple[str, ...]) -> None:
    run = kept(kind, *without)
    code, output, _ = clusterkit("status", str(run.path), "--json")
    told = json.loads(output)
    assert (code, told["state"], told["exit_code"]) == (1, "failed", 1)
    assert told["reason"] == f"{SECOND[kind]}: rank 1 exited with 1"
    assert told["failure"]["tail"][-1] == "RuntimeError: no data on the second node"
    assert run.state.exists()


def test_its_output_is_read_and_its_failure_explained(kind: str) -> None:
    run = kept(kind, "state.json")
    code, output, _ = clusterkit("logs", str(run.path), "--follow", "--node", "1")
    assert code in {0, 1}
    assert "RuntimeError: no data on the second node" in output
    code, output, _ = clusterkit("diagnose", str(run.path), "--json")
    assert code == 1
    assert "no data on the second node" in json.dumps(json.loads(output))


def test_one_that_is_not_over_is_ended_or_says_who_could(kind: str) -> None:
    run = kept(kind, *ENDED, "logs")
    (run.path / "nodes").mkdir(mode=0o700)
    code, output, errors = clusterkit("cancel", str(run.path))
    assert run.cancelled.exists()
    if kind == "ssh":  # nobody answers to these names
        assert code == 2
        assert "n1, n2" in errors
    else:  # its controller, elsewhere, sees the file; Slurm knows no such job any more
        assert (code, "cancelled" in output) == (0, True)


def test_a_next_attempt_would_know_its_nodes(kind: str) -> None:
    run = kept(kind)
    assert node_results.read_failures(run)[0].node == SECOND[kind]
    if kind == "ssh":
        assert read_layout(run).names == ("n1", "n2")
