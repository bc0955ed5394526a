"""Of ranked runs that were appended to one file the last is told, with or without a start mark."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.verdict import Diagnosis
from tests.helpers.diagnose_rules import root_cause

Say = Callable[[str], Diagnosis]


def raised(error: str, *ranks: int | None) -> str:
    """Return the tracebacks of ranks, as PyTorch prints them; of None as Python does."""
    lines = ("Traceback (most recent call last):", '  File "/home/u/fit.py", line 7, in <module>',
             "    fit()", error)  # fmt: skip
    before = ["" if rank is None else f"[rank{rank}]: " for rank in ranks]
    return "".join(f"{head}{line}\n" for head in before for line in lines)


def steps(first: int, last: int) -> str:
    return "".join(f"iter {n}: loss 2.{n}, time 98 ms\n" for n in range(first, last))


REPORT = root_cause("n1", 0)
ROWS = "".join(f"reading part {n} of the rows\n" for n in range(12))
KEY, FULL, VALUE = "KeyError: 'lr'", "torch.OutOfMemoryError: CUDA out of memory.", "ValueError: x"


def told(found: Diagnosis) -> tuple[str, int, int | None] | None:
    cause = found.cause
    return None if cause is None else (cause.rule, cause.evidence.line, cause.rank)


@pytest.mark.parametrize(
    "runs",
    [
        [raised(KEY, 0, 1), steps(0, 9), raised(VALUE, 0)],
        [raised(KEY, None), steps(0, 9), raised(FULL, 0, 1), REPORT, steps(0, 9), raised(VALUE, 0)],
        [steps(0, 9), raised(FULL, 0, 1), REPORT, steps(0, 9), raised(VALUE, None)],
        [raised(VALUE, 1), REPORT, steps(0, 9), raised(KEY, 1), REPORT, ROWS, raised(VALUE, 1)],
        [raised(KEY, 0), REPORT, ROWS, raised(VALUE, None), REPORT],
    ],
)
def test_the_last_of_ranked_runs_is_told(say: Say, runs: list[str]) -> None:
    log = "".join(runs)
    found = say(log)
    cause = found.cause
    assert cause is not None
    assert (cause.evidence.text, cause.evidence.line) == (
        VALUE,
        log[: log.rindex(VALUE)].count("\n") + 1,
    )
    assert (cause.node is None) == (runs[-1] != REPORT)
    assert len(found.notes) == 1


def test_what_an_earlier_run_ended_with_is_a_note(say: Say) -> None:
    well = steps(0, 9) + raised(KEY, 0, 1) + REPORT + steps(0, 50)
    found = say(well)
    assert found.cause is None
    assert [note.rpartition(" with: ")[2] for note in found.notes] == [KEY]
    stopped = well + "^C" + raised("KeyboardInterrupt", 0)
    assert told(say(stopped)) == ("interrupted", stopped.count("\n"), 0)


@pytest.mark.parametrize(
    "log",
    [
        raised(KEY, 3) + steps(10, 12) + raised(VALUE, 0) + root_cause("n1", 3),  # printed late
        raised(KEY, 3) + root_cause("n1", 3) + raised(VALUE, 2) + REPORT,  # the next node's report
        raised(KEY, 3) + "".join(f"[rank0]: {line}\n" for line in steps(0, 9).splitlines())
        + raised(VALUE, 0),  # a rank that waits for nobody
        raised(KEY, 3) + ROWS + raised(VALUE, 0),
    ],
)  # fmt: skip
def test_what_other_ranks_print_of_the_same_run_begins_none(say: Say, log: str) -> None:
    assert told(say(log)) == ("python-exception", 4, 3)
