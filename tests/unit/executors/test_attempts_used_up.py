"""A job that reached its time limit on its last attempt: what is said of all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterkit.core.model import ClusterKind, JobState, JobStatus, NodeResult
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.observe.diagnose.facts import steps_of_attempts
from clusterkit.observe.diagnose.job import diagnose_run
from clusterkit.observe.diagnose.rules import own_rules
from tests.helpers.plans import make_cluster

REQUEUED = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-20T10:0{}:00 DUE TO JOB REQUEUE"
LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-20T10:09:00 DUE TO TIME LIMIT ***"


def restart(attempt: int) -> str:
    return f"--- clusterkit: restart {attempt} on n1, 2026-11-20T10:0{attempt}:00+00:00\n"


def lines(first: int, last: int, every: int = 1) -> str:
    return "".join(f"step {n} loss 2.{n % 10}\n" for n in range(first, last + 1, every))


def ended(
    folder: Path, log: str, *, reasons: tuple[str, ...], state: JobState, requeue: int
) -> RunFolder:
    """Write the run folder of a job on Slurm whose attempts ended for these reasons."""
    run = runfolder.create(make_cluster(folder), "toy")
    submission = Submission(
        run_id=run.run_id, name="toy", cluster="c", kind=ClusterKind.SLURM, framework="torchrun",
        nodes=1, tasks=1, submitted_at=1.0, job_id="7", requeue=requeue,
    )  # fmt: skip
    for attempt, reason in enumerate(reasons):
        result = NodeResult(
            node_rank=0, node="n1", exit_code=143, started_at=1.0, ended_at=9.0, reason=reason
        )
        node_results.write_result(run, result, attempt=attempt, n_nodes=1)
    run.log(0).write_text(log)
    batch = [REQUEUED.format(n) + ", SEE SLURMCTLD LOG FOR DETAILS ***" for n in range(1, 3)]
    (run.submitit / "7_batch.out").write_text("\n".join([*batch, LIMIT]) + "\n")
    runfolder.write_submission(run, submission)
    runfolder.write_state(run, submission, JobStatus(state=state, exit_code=143))
    return run


def test_the_limit_is_told_and_what_each_attempt_made(tmp_path: Path) -> None:
    log = lines(10, 400, 10) + restart(1) + lines(391, 790) + restart(2) + lines(781, 800)
    timeouts = ("timeout",) * 3
    run = ended(tmp_path, log, reasons=timeouts, state=JobState.TIMEOUT, requeue=2)
    cause = diagnose_run(run, own_rules()).diagnosis.cause
    assert cause is not None
    assert cause.rule == "attempts-used-up"
    assert "All 3 attempts" in cause.says
    assert "400 steps, 400 steps, 20 steps" in cause.says


def test_an_attempt_without_a_step_is_told_as_such(tmp_path: Path) -> None:
    log = "step 100 loss 2\n" + restart(1) + "resume: it hangs\n"
    timeouts = ("timeout", "timeout")
    run = ended(tmp_path, log, reasons=timeouts, state=JobState.TIMEOUT, requeue=1)
    cause = diagnose_run(run, own_rules()).diagnosis.cause
    assert cause is not None
    assert "100 steps, 0 steps" in cause.says


@pytest.mark.parametrize(
    ("reasons", "state", "requeue", "rule"),
    [
        (("timeout",), JobState.TIMEOUT, 0, "time-limit"),
        (("timeout", "timeout"), JobState.TIMEOUT, 5, "time-limit"),
        (("timeout", "preempted"), JobState.PREEMPTED, 1, "preempted"),
        (("preempted", "timeout"), JobState.TIMEOUT, 1, "attempts-used-up"),
    ],
)
def test_the_last_attempt_counts(
    tmp_path: Path, reasons: tuple[str, ...], state: JobState, requeue: int, rule: str
) -> None:
    run = ended(tmp_path, "no steps\n", reasons=reasons, state=state, requeue=requeue)
    cause = diagnose_run(run, own_rules()).diagnosis.cause
    assert cause is not None
    assert cause.rule == rule


def test_steps_are_read_as_trainers_print_them(tmp_path: Path) -> None:
    log = tmp_path / "node-0.log"
    log.write_text(
        "[rank0]: {'loss': 2.1, 'step': 5}\n[rank1]: {'loss': 2.1, 'step': 5}\n"
        "[rank0]: {'loss': 2.0, 'step': 10}\nval step 900 loss 3\n"
        + restart(1)
        + "\r  1%|#  | 11/1000 [00:01<01:40, 9.9it/s]\r  2%|#  | 20/1000 [00:02<01:40, 9.9it/s]\n"
    )
    assert steps_of_attempts(log) == {0: 10, 1: 1}


def test_a_restart_with_a_number_that_none_has_is_a_line_like_others(tmp_path: Path) -> None:
    log = tmp_path / "node-0.log"
    log.write_text(
        f"step 5 loss 2\n--- clusterkit: restart {'9' * 5000} on n1, of\nstep 6 loss 2\n"
    )
    assert steps_of_attempts(log) == {0: 2}
