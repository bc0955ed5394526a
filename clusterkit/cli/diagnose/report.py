"""A diagnosis as people read it, and what verbs that wait for a job print below its state."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterkit.cli.frame import console
from clusterkit.core.errors import ClusterkitError
from clusterkit.core.model import JobState, RequeueOn
from clusterkit.core.text import in_line
from clusterkit.executors.run import node_results
from clusterkit.jobs.document import batch_output, failure_of
from clusterkit.jobs.state.load import Job

if TYPE_CHECKING:
    from clusterkit.observe.diagnose.job import Advice
    from clusterkit.observe.diagnose.verdict import Finding


WIDTH = 80
_MOST_OTHERS = 8
_MOST_ROWS = 8
"""Of one text: a message that a script made may be a whole tensor."""
_MOST_WORDS = 520
"""Characters of it that these rows hold, with what is lost at their ends."""
_SHORTEST_TITLE = 160
"""What is said of a message ends with the doubt in it, and is not cut for a longer one."""


def answer(found: Finding, advice: Advice | None = None) -> Iterator[str]:
    """Yield the lines that say what happened, where, and what to do."""
    says = "" if found.says.rstrip(".").lower() == found.title.lower() else f". {found.says}"
    room = max(_SHORTEST_TITLE, _MOST_WORDS - len(says))
    title = textwrap.shorten(found.title, room, placeholder=" ...") if says else found.title
    yield from labelled("what", title + (says or "."), console.bold)
    yield from labelled("where", _where(found))
    yield from labelled("do", found.do)
    if advice is not None:
        yield from labelled("", advice.answer or "the estimator says what fits:")
        yield f"       $ {advice.command}"


def evidence(found: Finding) -> Iterator[str]:
    """Yield where it stands, and the lines."""
    shown = found.evidence
    if not shown.line:
        yield f"{_short(shown.file)}"
        fact = shown.text.removeprefix("clusterkit fact: ")
        if not _is_told(fact, found.says):
            yield from (console.dim(row) for row in rows(fact, 1))
        return
    times = f"  ({found.count} lines like it)" if found.count > 1 else ""
    yield f"{_short(shown.file)}:{shown.line}{times}"
    for text, most in (
        *((text, 1) for text in shown.before),
        (shown.text, LAST_ROWS),
        *((text, 1) for text in shown.after),
    ):
        yield from (console.dim(row) for row in rows(in_line(text), most))


def _is_told(fact: str, says: str) -> bool:
    """Tell whether a text says all of a fact, `KEY=VALUE` or `KEY=HEAD: PART; PART`."""
    value = fact.partition("=")[2]
    parts = (value.partition(": ")[2] or value).split("; ")
    return all(" " in part and part in says for part in parts)


def others(found: Sequence[Finding], cause: Finding | None = None) -> Iterator[str]:
    """Yield a line for everything else that was found, with everybody to whom it happened.

    Nothing for what another finding, or the cause, says and tells more of.
    """
    from clusterkit.observe.diagnose.rules import Role
    from clusterkit.observe.diagnose.verdict import everybody

    said = [one.title for one in (cause, *found) if one is not None]
    every = [one for one in found if not any(title.startswith(f"{one.title}, ") for title in said)]
    for one in every[:_MOST_OTHERS]:
        who = everybody(one)
        times = f" ({one.count} lines)" if one.count > 1 else ""
        word = "then" if one.role is Role.CONSEQUENCE else "also"
        yield from labelled(word, f"{who}: {one.title}{times}" if who else one.title + times)
    if len(every) > _MOST_OTHERS:
        yield from labelled("", f"and {len(every) - _MOST_OTHERS} more: --json lists all")


def _where(found: Finding) -> str:
    from clusterkit.observe.diagnose.document import moment
    from clusterkit.observe.diagnose.verdict import everybody

    known = found.where or everybody(found)
    place = known or ("the job" if not found.evidence.line else "no line says which rank")
    if found.time is not None:
        place += f", {moment(found.time):%H:%M:%S}"
    if found.by_others:
        return f"{place}; told by {everybody(found)}"
    nodes = tuple(node for node in found.nodes if node != found.node)
    ranks = tuple(rank for rank in found.ranks if rank != found.rank)
    if found.where and (more := everybody(replace(found, nodes=nodes, ranks=ranks))):
        place += f"; the same on {more}"
    return place


def labelled(label: str, text: str, style: Any = str) -> Iterator[str]:
    """Yield a text on lines of 80 columns, the first behind its label."""
    room = WIDTH - 7
    wrapped = textwrap.wrap(
        in_line(text), room, break_on_hyphens=False, max_lines=_MOST_ROWS, placeholder=" ..."
    )
    first, *more = wrapped or [""]
    yield f"{label:<7}{style(first)}"
    yield from (f"       {row}" for row in more)


def _short(path: Path) -> str:
    """Return a path relative to here, where that is shorter."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


_LINES = 15
_ENOUGH = 60
"""So many characters of a line tell it from others: the rest may be cut off in one place."""
_RANK = re.compile(r"^\[rank\d+\]: ")
"""What PyTorch puts before each line of a traceback, and last words are without."""
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
    lines = _last_lines(job)
    return [
        *(console.dim(row) for line in lines[:-1] for row in rows(line, 1)),
        *(console.dim(row) for line in lines[-1:] for row in rows(line, LAST_ROWS)),
    ]


def _last_lines(job: Job) -> list[str]:
    """Return the lines of `last_words` as they stand in the log, however wide."""
    failure = failure_of(job)
    lines = list(failure.tail[-_LINES:] if failure is not None else batch_output(job))
    message = failure.message if failure is not None else None
    if message and not _is_among(message, lines):
        lines.append(message)
    return lines


def _is_among(text: str, lines: Iterable[str]) -> bool:
    """Tell whether a text stands in these lines, there or here behind the label of a rank.

    Blanks do not count, nor what was cut off.
    """
    wanted = _RANK.sub("", " ".join(text.split()))[:_ENOUGH]
    return wanted in " ".join(" ".join(lines).split())


def not_again(job: Job) -> list[str]:
    """Return why a job whose script failed did not start again, where its user may wait for that.

    Nothing of an elastic job, of which no failure of the script is excused, and of one that hung.
    """
    submission = job.submission
    only_hardware = submission.most_attempts > 1 and submission.requeue_on is RequeueOn.HARDWARE
    if job.status.state is not JobState.FAILED or not only_hardware:
        return []
    failure = failure_of(job)
    if submission.least is not None or failure is None:
        return []
    if any((failure.lost, failure.hung, failure.unfit, failure.fault)):
        return []
    left = submission.most_attempts - 1 - node_results.latest_attempt(job.run)
    ways = {"requeue": submission.requeue, "restarts": submission.restarts}
    flags = " ".join(f"--{way} {most}" for way, most in ways.items() if most)
    what = "not requeued" if submission.requeue else "not restarted"
    why = f"{what}: the script failed; for that: {flags} --requeue-on failure"
    return [why] if left > 0 else []


def rows(line: str, most: int) -> Iterator[str]:
    """Yield a line of a log as it fits the terminal, marked where it continues after `most`."""
    width = shutil.get_terminal_size().columns - len(_MARGIN)
    yield from (_MARGIN + row for row in _rows(line, width, most))


def _rows(line: str, width: int, most: int) -> Iterator[str]:
    if len(line) <= width:
        yield line
        return
    if not line.strip(" ^~"):  # marks below a line of code: they stay in their columns
        yield line[:width]
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
    lines = [*last_words(job), *not_again(job)]
    if job.status.state is JobState.SUCCEEDED:
        from clusterkit.cli.jobs.trained_alone import trained_alone

        return [*lines, *trained_alone(job)]
    if job.status.state not in TOLD:
        return lines
    from clusterkit.observe.diagnose.document import advice_for
    from clusterkit.observe.diagnose.job import diagnose_job
    from clusterkit.observe.diagnose.rules import load_rules

    try:
        found = diagnose_job(job, load_rules())
        cause = found.diagnosis.cause
        advice = advice_for(found)
    except ClusterkitError:  # the job's own end is what was waited for
        return lines
    if cause is None:
        return lines
    if cause.evidence.line and not _is_among(cause.evidence.text, _last_lines(job)):
        lines += [console.dim(row) for row in rows(cause.evidence.text, LAST_ROWS)]
    return [*lines, *answer(cause, advice)]
