"""What became of the jobs of an array that failed: a block for each cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from clusterkit.cli.diagnose.report import (
    TOLD,
    answer,
    labelled,
    last_words,
    rows,
)
from clusterkit.cli.frame import console
from clusterkit.cli.frame.job_args import state_text
from clusterkit.jobs.document import logs_document, name_of
from clusterkit.jobs.logs import read_logs
from clusterkit.jobs.state.load import Job
from clusterkit.launch.array.spec import fold_numbers

if TYPE_CHECKING:
    from clusterkit.observe.diagnose.job import JobDiagnosis
    from clusterkit.observe.diagnose.rules import Rule

Causes = Sequence[tuple["JobDiagnosis", ...]]
"""Jobs that failed, in groups that failed for the same reason."""

_MOST_CAUSES = 8
_LINES = 15


def causes_of(jobs: Sequence[Job], rules: Sequence[Rule] | None = None) -> Causes:
    """Return those of these jobs that failed, folded by cause; their logs are read one by one."""
    from clusterkit.observe.diagnose.causes import by_cause
    from clusterkit.observe.diagnose.job import diagnose_run
    from clusterkit.observe.diagnose.rules import load_rules

    failed = [job for job in jobs if job.status.state in TOLD]
    if not failed:
        return []
    known = load_rules() if rules is None else rules
    found = []
    with console.counting(len(failed), "failed jobs looked at") as counted:
        for job in failed:
            found.append(diagnose_run(job.run, known))
            counted(job)
    return by_cause(found)


def blocks(array: str, jobs: Sequence[Job], causes: Causes) -> Iterator[str]:
    """Yield for each cause which jobs it ended, the answer of `diagnose`, and what to type."""
    return _blocks("diagnose", array, jobs, causes, _why)


def log_blocks(
    array: str, jobs: Sequence[Job], causes: Causes, *, tail: int | None
) -> Iterator[str]:
    """Yield for each cause which jobs it ended, and the last lines that the first has printed."""

    def output(first: JobDiagnosis) -> Iterator[str]:
        cause = first.diagnosis.cause
        yield from labelled("what", cause.title if cause else state_text(first.job))
        if tail is None and (lines := last_words(first.job)):  # without a launcher's report
            yield from lines
            return
        for line in "".join(read_logs(first.job.run, tail=_tail(tail))).splitlines():
            yield from rows(line, 1)

    return _blocks("logs", array, jobs, causes, output)


def cause_documents(
    causes: Causes, *, tail: int | None = None, logs: bool = False
) -> list[dict[str, Any]]:
    """Return what `--json` tells of each cause: the jobs, and the diagnosis or logs of the first.

    `steps` has the last step that each of the jobs printed, null where it printed none.
    """
    from clusterkit.observe.diagnose.document import advice_for, document

    return [
        {
            "indices": [one.job.submission.index for one in group],
            "job_ids": [name_of(one.job) for one in group],
            "steps": [one.diagnosis.step for one in group],
            **document(group[0].diagnosis, advice_for(group[0])),
            **({"logs": logs_document(group[0].job.run, None, _tail(tail))} if logs else {}),
        }
        for group in causes
    ]


def _blocks(
    verb: str,
    array: str,
    jobs: Sequence[Job],
    causes: Causes,
    body: Callable[[JobDiagnosis], Iterator[str]],
) -> Iterator[str]:
    for group in causes[:_MOST_CAUSES]:
        which = _indices(group)
        numbers = f"{array}/{fold_numbers(which)}  ({len(group)} of {len(jobs)})"
        yield from labelled("jobs" if len(group) > 1 else "job", numbers, console.bold)
        yield from body(group[0])
        steps = sorted({one.diagnosis.step for one in group if one.diagnosis.step is not None})
        if steps:
            last = f"{steps[0]}" if len(steps) == 1 else f"between {steps[0]} and {steps[-1]}"
            yield from labelled("step", f"the last that was printed: {last}")
        yield f"one    $ clusterkit {verb} {array}/{which[0]}"
        yield ""
    left = causes[_MOST_CAUSES:]
    if left:
        which = [number for group in left for number in _indices(group)]
        yield f"{len(left)} more causes (jobs {array}/{fold_numbers(which)}): --json lists all"


def _why(first: JobDiagnosis) -> Iterator[str]:
    from clusterkit.observe.diagnose.document import advice_for

    cause = first.diagnosis.cause
    if cause is not None:
        yield from answer(cause, advice_for(first))
        return
    yield from labelled("what", state_text(first.job))
    yield from last_words(first.job)


def _indices(group: Sequence[JobDiagnosis]) -> list[int]:
    return [number for one in group if (number := one.job.submission.index) is not None]


def _tail(tail: int | None) -> int:
    return _LINES if tail is None else tail
