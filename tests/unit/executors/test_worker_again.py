"""Who gives a job that has lost a node back to Slurm: one node, and none that Slurm cannot hear."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from clusterkit.core.model import ClusterKind, NodeResult
from clusterkit.executors.node import watch as again
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission

NAMES = tuple(f"n{k}" for k in range(16))
LOST = node_results.lost(3, "n3", "no longer answers")


def node(rank: int) -> Identity:
    return Identity(job_id="7", attempt=0, rank=rank, of=16, name=NAMES[rank], among=NAMES)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.failures.mkdir(parents=True)
    return run


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a scontrol and a scancel on PATH that note what they are asked; no ping is answered."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("scontrol", "scancel"):
        program = folder / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/asked\n[ "$1" != ping ]\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(again, "_OTHERS_AFTER_S", 0.2)
    return tmp_path / "asked"


def submitted(run: RunFolder, *, requeue: int) -> Submission:
    submission = Submission(
        run_id=run.run_id,
        name="train",
        cluster="c",
        kind=ClusterKind.SLURM,
        framework="torchrun",
        nodes=16,
        tasks=16,
        submitted_at=time.time(),
        requeue=requeue,
        job_id="7",
    )
    runfolder.write_submission(run, submission)
    return submission


def test_a_job_that_another_node_may_start_again_is_not_ended(run: RunFolder, asked: Path) -> None:
    """Slurm was too slow for this one's question, and is not for all."""
    submitted(run, requeue=1)
    again.requeue(run, node(0), "n3 no longer answers", lost=LOST)
    again.give_up(run, node(0), lost=LOST)
    assert asked.read_text() == "scontrol ping\n"
    assert not run.requeued(0).exists()


def test_a_job_that_does_not_start_again_is_ended_by_one(run: RunFolder, asked: Path) -> None:
    submitted(run, requeue=0)
    for rank in range(16):
        again.give_up(run, node(rank), lost=LOST)
    assert asked.read_text() == "scancel 7\n"


def test_of_many_nodes_those_that_come_later_do_not_ask(run: RunFolder, asked: Path) -> None:
    submitted(run, requeue=1)
    run.requeued(0).write_text(json.dumps({"why": "n3 no longer answers"}))
    for rank in (0, 3, 9, 15):
        again.requeue(run, node(rank), "n3 no longer answers", lost=LOST)
    assert not asked.exists()


def test_the_next_attempt_is_told_which_nodes_to_leave_out(run: RunFolder, asked: Path) -> None:
    submitted(run, requeue=1)
    result = NodeResult(
        node_rank=3, node="n3", exit_code=69, started_at=0.0, ended_at=1.0, unfit="/dev/shm is full"
    )
    run.nodes.mkdir()
    node_results.write_result(run, result, attempt=0, n_nodes=16)
    again.requeue(run, node(3), "n3 is unhealthy")
    assert run.left_out.read_text() == "n3\n"
    assert asked.read_text() == "scontrol requeue 7\n"
