"""What torchrun, as the nodes of a job start it, leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command_line import typed_in

pytestmark = pytest.mark.train


@pytest.mark.parametrize(
    ("framework", "wish", "left"),
    [
        ("torchrun", (), []),
        ("torchrun", ("--env", "PET_TEE=3"), ["stderr.log", "stdout.log"]),
        ("torchrun", ("--env", "PET_STANDALONE=1"), []),
        ("accelerate", (), []),
    ],
)
def test_a_job_leaves_only_what_is_asked_for(
    tmp_path: Path, framework: str, wish: tuple[str, ...], left: list[str]
) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "clusterkit.yaml").write_text("clusters: {here: {kind: local, run_dir: runs}}\n")
    (tmp_path / "train.py").write_text("print('hello')\n")
    words = ("submit", "--cluster", "here", "--framework", framework, "--wait", *wish, "train.py")
    done = typed_in(tmp_path, *words, TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in (tmp_path / "tmp").rglob("*.log")) == left
    (log,) = tmp_path.glob("runs/*/logs/node-0.log")
    gives_way = "PET_STANDALONE gives way to the job's own rendezvous"
    assert ("PET_STANDALONE=1" in wish) == (gives_way in log.read_text())
    assert left or not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("framework", ["env", "torchrun", "accelerate", "mpi", "deepspeed"])
def test_a_rank_that_ended_well_before_the_one_that_failed_is_named(
    tmp_path: Path, framework: str
) -> None:
    (tmp_path / "clusterkit.yaml").write_text("clusters: {here: {kind: local, run_dir: runs}}\n")
    body = (
        "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit()\ntime.sleep(2)\nsys.exit(1)"
    )
    (tmp_path / "train.py").write_text(body)
    words = ("--framework", framework, "--gpus-per-node", "2", "--wait", "train.py")
    done = typed_in(tmp_path, "submit", "--cluster", "here", *words)
    told = "rank 0 exited with 1; before it, rank 1 on node-0 had ended with exit code 0"
    assert done.returncode == 1, done.stderr
    assert told in done.stdout + done.stderr
