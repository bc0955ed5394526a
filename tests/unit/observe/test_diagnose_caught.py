"""What a training raised of single samples, logged and went on after, is no failure of the job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.cli.diagnose.report import answer
from clusterkit.observe.diagnose.verdict import Diagnosis

Say = Callable[..., Diagnosis]

WORKER = "(SampleWorker pid=4711) "
STEP = "(Runner pid=4700) step:{} - reward/mean:0.41 - timing_s/step:311.2\n"
END = "srun: error: n1: task 0: Exited with exit code 1\n"


def raised(item: int, *, head: str = "ERROR:2026-11-22 13:59:12,440:") -> str:
    lines = (
        f"{head}Traceback (most recent call last):",
        '  File "/home/ada/agent/parse.py", line 27, in parse',
        "    raise ValueError(text)",
        f"ValueError: no action in answer {item}: You need to press key {item}",
    )
    return "".join(f"{WORKER}{line}\n" for line in lines)


def rounds(count: int, *, head: str = "ERROR:2026-11-22 13:59:12,440:") -> str:
    three = "".join(raised(item, head=head) for item in range(3))
    return "".join(three + STEP.format(n) for n in range(1, count + 1)) + three


def test_what_came_again_after_each_of_several_steps_is_no_failure(say: Say) -> None:
    assert say(rounds(2)).cause is None


@pytest.mark.parametrize(
    "log",
    [
        rounds(1),
        "".join(raised(item) for item in range(9)),
        rounds(2) + END,
        rounds(2, head=""),
        STEP.format(1) + STEP.format(2) + raised(1),
    ],
)
def test_what_may_have_ended_the_job_is_told_all_the_same(say: Say, log: str) -> None:
    cause = say(log).cause
    assert cause is not None
    assert "You need to press" in cause.evidence.text


def test_the_doubt_is_shown_however_long_the_message_is(say: Say) -> None:
    long = f"ValueError: You must {'press another key ' * 60}\n"
    cause = say(f"step 1 loss 2.1\n{long}step 2 loss 2.1\nstep 3 loss 2.0\n").cause
    assert cause is not None
    assert "steps stand after it" in " ".join(" ".join(answer(cause)).split())
