"""Whether a job starts again, and on which nodes."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from clusterkit.core.errors import RemoteError
from clusterkit.core.model import ClusterKind, JobState, NodeResult
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run import restarts as of_run
from clusterkit.executors.run.attempts import (
    choose_nodes,
    nodes_to_leave_out,
    pause_s,
    restarts,
)
from clusterkit.executors.run.restarts import count, is_due, may_start_again, note, why
from clusterkit.executors.run.runfolder import RunFolder, Submission
from tests.helpers.plans import make_cluster

LOST = node_results.lost(1, "n2", "no longer answers")
UNFIT = NodeResult(
    node_rank=0, node="n1", exit_code=69, started_at=0, ended_at=1, unfit="/dev/shm is full"
)
OWN = NodeResult(node_rank=0, node="n1", exit_code=7, started_at=0, ended_at=1)
FAULTY = NodeResult(
    node_rank=2, node="n3", exit_code=1, started_at=0, ended_at=1, reason="peer", fault="Xid 79"
)


def submission(**values: int) -> Submission:
    return Submission(
        **{
            "run_id": "toy-20261121-101500-4f06f8",
            "name": "toy",
            "cluster": "rack",
            "kind": ClusterKind.SSH,
            "framework": "torchrun",
            "nodes": 2,
            "tasks": 2,
            "submitted_at": 0.0,
            "requeue": 2,
            **values,
        }
    )


@pytest.mark.parametrize(
    ("state", "failure", "again"),
    [
        (JobState.TIMEOUT, None, True),
        (JobState.FAILED, LOST, True),
        (JobState.FAILED, UNFIT, True),
        (JobState.FAILED, None, True),
        (JobState.PREEMPTED, None, True),
        (JobState.FAILED, OWN, False),
        (JobState.SUCCEEDED, None, False),
        (JobState.CANCELLED, None, False),
        (JobState.UNKNOWN, None, False),
        (JobState.RUNNING, None, False),
    ],
)
def test_what_is_not_the_jobs_own_doing_starts_it_again(
    state: JobState, failure: NodeResult | None, again: bool
) -> None:
    assert restarts(state, failure, attempt=1, left_out=0, submission=submission()) is again


def test_a_node_that_is_to_blame_for_what_another_failed_of_is_left_out(tmp_path: Path) -> None:
    """And the job starts again: where no node finds a fault of its own, it does not."""
    run, job = RunFolder(tmp_path), submission(spares=1)
    run.nodes.mkdir()
    run.failures.mkdir()
    node_results.write_result(run, OWN, attempt=0, n_nodes=2)
    assert not may_start_again(run, job, JobState.FAILED, 0)
    node_results.write_result(run, FAULTY, attempt=0, n_nodes=2)
    assert may_start_again(run, job, JobState.FAILED, 0)
    assert node_results.left_out(run) == {"n3"}
    assert not may_start_again(run, submission(), JobState.FAILED, 0)


@pytest.mark.parametrize(
    ("attempt", "left_out", "values", "again"),
    [
        (1, 0, {}, True),
        (2, 0, {}, False),
        (0, 0, {"requeue": 0}, False),
        (0, 1, {}, False),
        (0, 1, {"spares": 1}, True),
        (0, 2, {"spares": 1}, False),
        (0, 2, {"max_nodes": 4}, True),
    ],
)
def test_neither_more_often_than_allowed_nor_with_too_few_nodes(
    attempt: int, left_out: int, values: dict[str, int], again: bool
) -> None:
    job = submission(**values)
    assert (
        restarts(JobState.TIMEOUT, None, attempt=attempt, left_out=left_out, submission=job)
        is again
    )


def test_nodes_are_left_out_that_were_lost_twice_or_are_not_fit() -> None:
    other = node_results.lost(0, "n3", "no longer answers")
    assert nodes_to_leave_out([LOST, other]) == frozenset()
    assert nodes_to_leave_out([LOST, other, LOST, UNFIT, OWN, OWN]) == {"n1", "n2"}


def test_a_spare_takes_the_place_of_a_node() -> None:
    assert choose_nodes(["n1", "n2"], ["n3", "n4"], {"n1", "n3"}) == ("n4", "n2")
    assert choose_nodes(["n1", "n2"], [], ()) == ("n1", "n2")
    with pytest.raises(RemoteError, match="n1, n2 cannot be used, and the job has 1 spare left"):
        choose_nodes(["n1", "n2"], ["n3"], {"n1", "n2"})


@pytest.mark.parametrize(
    ("state", "attempt", "restarted", "again"),
    [
        (JobState.FAILED, 0, 0, True),
        (JobState.FAILED, 2, 1, True),  # the other one was requeued
        (JobState.FAILED, 2, 2, True),
        (JobState.FAILED, 3, 2, False),  # nothing is left of either
        (JobState.TIMEOUT, 2, 2, True),
        (JobState.TIMEOUT, 1, 0, False),  # a limit is no failure
        (JobState.CANCELLED, 0, 0, False),
    ],
)
def test_restarts_have_a_budget_of_their_own(
    state: JobState, attempt: int, restarted: int, again: bool
) -> None:
    job = submission(requeue=1, restarts=2)
    failure = LOST if state is JobState.FAILED else None
    found = restarts(
        state, failure, attempt=attempt, left_out=0, submission=job, restarted=restarted
    )
    assert found is again


def test_attempts_that_fail_at_once_wait_longer_and_longer() -> None:
    pauses = [pause_s([4.0] * number) for number in range(1, 5)]
    assert pauses[0] == 0
    assert [pauses[2] / pauses[1], pauses[3] / pauses[2]] == [2, 2]
    assert pause_s([4.0] * 1000) == pause_s([4.0] * 2000) == 300
    assert pause_s([4.0, 4.0, 3600.0]) == 0
    assert pause_s([4.0, 3600.0, 4.0]) == 0


@pytest.mark.parametrize(
    ("steps", "waits"),
    [
        ((None, None, None), (False, True, True)),
        ((10, 20, 30), (False, False, False)),
        ((10, 10, 9), (False, False, True)),
        ((10, 30, 20), (False, False, False)),
    ],
)
def test_faults_between_which_a_job_goes_on_are_no_loop(
    tmp_path: Path, steps: tuple[int | None, ...], waits: tuple[bool, ...]
) -> None:
    """Each of these attempts has taken eight seconds."""
    run = runfolder.create(make_cluster(tmp_path), "toy")
    found = []
    for attempt, step in enumerate(steps):
        result = NodeResult(
            node_rank=0, node="n1", exit_code=137, started_at=1.0, ended_at=9.0, step=step
        )
        node_results.write_result(run, result, attempt=attempt, n_nodes=1)
        found.append(of_run.pause_s(run, attempt) > 0)
    assert tuple(found) == waits


def test_restarts_are_counted_by_what_they_leave(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for attempt in (0, 2):
        note(run, attempt, "n2 no longer answers")
    note(run, 2, "somebody else came later")
    for name in ("restart-x.json", "restart-1.json.tmp", "again-1.json"):
        (tmp_path / name).touch()
    assert [count(run, attempt) for attempt in range(4)] == [0, 1, 1, 2]
    assert (why(run, 2), why(run, 1)) == ("n2 no longer answers", None)
    assert is_due(run, 2)
    for folder in (run.nodes, run.failures):
        folder.mkdir()
    for attempt in range(3):
        ended = dataclasses.replace(OWN, started_at=0, ended_at=1)
        node_results.write_result(run, ended, attempt=attempt, n_nodes=1)
    assert not is_due(run, 2)
    os.utime(run.restarted(2), (0, 0))
    assert is_due(run, 2)
