"""Of Spark the error of the task is told, and not that its executor was lost with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.verdict import Diagnosis

Say = Callable[[str], Diagnosis]

AT = "26/11/22 14:05:1"
TASK = "Lost task 1.0 in stage 4.0 (TID 9) (n2 executor 2): "
GONE = f"{AT}2 ERROR TaskSchedulerImpl: Lost executor 2 on n2: Remote RPC client disassociated.\n"
ABORTED = f"{AT}3 ERROR TaskSetManager: Task 1 in stage 4.0 failed 1 times; aborting job\n"
SUMMED = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 4.0 failed "
    f"1 times, most recent failure: {TASK}ExecutorLostFailure (executor 2 exited caused by one of "
    "the running tasks) Reason: Remote RPC client disassociated.\n"
)
LOST = (
    f"{AT}2 WARN TaskSetManager: {TASK}ExecutorLostFailure (executor 2 exited caused by one of the "
    "running tasks) Reason: Container from a bad node: c_2 on host: n2. Exit status: 134.\n"
    "Container id: c_2\nExit code: 134\nLast 4096 bytes of stderr :\n"
)
GOOD = f"{AT}3 INFO TaskSetManager: Finished task 1.1 in stage 4.0 (TID 10) in 9 ms on n3\n"


def told(found: Diagnosis) -> tuple[str, str | None] | None:
    return None if found.cause is None else (found.cause.rule, found.cause.node)


@pytest.mark.parametrize(
    "error",
    [
        "ml.boost.BoostError: [14:05:11] /work/rabit/tree.cc:181: Check failed: rows >= 1",
        "org.apache.spark.SparkException: the column `label` was not found",
    ],
)
def test_the_error_of_a_task_goes_before_the_loss_of_its_executor(say: Say, error: str) -> None:
    failed = f"{AT}2 WARN TaskSetManager: {TASK}{error}\n\tat ml.boost.Tree.check(Tree.java:48)\n"
    found = say(failed + GONE + ABORTED + SUMMED)
    assert told(found) == ("spark-task-failed", "n2")
    assert found.cause is not None
    assert error in found.cause.title
    assert say(failed + GOOD).cause is None, "it was tried again"


@pytest.mark.parametrize(
    "error", ["java.io.IOException: Connection from n2/10.0.0.2:7337 closed", "TaskKilled (ended)"]
)
def test_what_a_task_has_of_a_lost_executor_does_not(say: Say, error: str) -> None:
    found = say(f"{GONE}{AT}2 WARN TaskSetManager: {TASK}{error}\n{ABORTED}{SUMMED}")
    assert told(found) == ("spark-executor-lost", "n2")


@pytest.mark.parametrize(
    ("last", "rule"),
    [
        ("terminate called after throwing an instance of 'boost::Error'\n  what():  no rows\n",
         "process-aborted"),
        ('Exception in thread "main" java.lang.IllegalStateException: no rows\n', "java-exception"),
        ("the table is open\n", "spark-executor-lost"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("times", [1, 3])
def test_what_an_executor_printed_at_last_is_why_it_was_lost(
    say: Say, last: str, rule: str, times: int
) -> None:
    found = say(f"{LOST}{last}" * times + ABORTED)
    assert told(found) == (rule, "n2")
    assert found.notes == ()
