"""What the verbs that wait for a job print below its state: last words, and the diagnosis."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator

from clusterkit.cli.frame import console
from clusterkit.core.errors import ClusterkitError
from clusterkit.core.model import JobState
from clusterkit.jobs.document import batch_output, failure_of
from clusterkit.jobs.state.load import Job

_LINES = 15
_MARGIN = "  | "
LAST_ROWS = 5
"""Of the last line, which most often is the error; of others, one."""
_FRAME = re.compile(r'(?P<head>.{0,60}?\bFile ")(?P<path>[^"]+)(?P<line>", line \d+)(?P<rest>.*)')
"""A place in the code, as Python tells it in a traceback."""
_TOLD = ("clusterkit: ", "hint: ")
"""Lines that say what to do: they are never cut."""


def last_words(job: Job) -> list[str]:
    """Return dimmed lines with the end of the output of the rank, or node, that failed first.

    Where none tells, of the batch script.
    """
    failure = failure_of(job)
    lines = list(failure.tail[-_LINES:] if failure is not None else batch_output(job))
    message = failure.message if failure is not None else None
    if message and not any(message in line for line in lines):
        lines.append(message)
    return [
        *(console.dim(row) for line in lines[:-1] for row in rows(line, 1)),
        *(console.dim(row) for line in lines[-1:] for row in rows(line, LAST_ROWS)),
    ]


def rows(line: str, most: int) -> Iterator[str]:
    """Yield a line of a log as it fits the terminal, with a mark where it goes on after `most`."""
    width = shutil.get_terminal_size().columns - len(_MARGIN)
    yield from (_MARGIN + row for row in _rows(line, width, most))


def _rows(line: str, width: int, most: int) -> Iterator[str]:
    if len(line) <= width:
        yield line
        return
    if (frame := _FRAME.match(line)) is not None:
        yield _shortened(frame, width)
        return
    rows = textwrap.wrap(line, width, subsequent_indent="  ") or [""]
    if line.lstrip().startswith(_TOLD) or len(rows) <= most:
        yield from rows
        return
    yield from rows[: most - 1]
    rest = line if most == 1 else "  " + " ".join(row.strip() for row in rows[most - 1 :])
    yield rest[: width - 1] + "…"


def _shortened(frame: re.Match[str], width: int) -> str:
    """Return a line of a traceback with the end of its path; file and line number always stay."""
    head, path, line, rest = frame.group("head", "path", "line", "rest")
    name = path.rpartition("/")[2]
    if len(head) + 2 + len(name) + len(line) + len(rest) > width:
        rest = ""
    room = max(width - len(head) - 1 - len(line) - len(rest), len(name) + 1)
    if len(path) > room:
        end = path[-room:]
        path = "…" + end[end.index("/") if "/" in end else 0 :]
    return f"{head}{path}{line}{rest}"


TOLD = frozenset({JobState.FAILED, JobState.TIMEOUT, JobState.PREEMPTED})


def why_failed(job: Job) -> list[str]:
    """Return the last words of a job that did not succeed, and the diagnosis of its logs.

    Of one that did, what makes that doubtful.
    """
    words = last_words(job)
    if job.status.state is JobState.SUCCEEDED:
        from clusterkit.cli.jobs.trained_alone import trained_alone

        return [*words, *trained_alone(job)]
    if job.status.state not in TOLD:
        return words
    from clusterkit.cli.diagnose.report import answer
    from clusterkit.cli.diagnose.verb import advice_for
    from clusterkit.observe.diagnose.job import diagnose_job
    from clusterkit.observe.diagnose.rules import load_rules

    try:
        found = diagnose_job(job, load_rules())
        cause = found.diagnosis.cause
        advice = advice_for(found)
    except ClusterkitError:  # the job's own end is what was waited for
        return words
    if cause is None:
        return words
    if cause.evidence.line and not any(cause.evidence.text[:60] in word for word in words):
        words += [console.dim(row) for row in rows(cause.evidence.text, LAST_ROWS)]
    return [*words, *answer(cause, advice)]
