"""Which rank failed first, as its launcher tells it in a file of the run folder.

The file (`CK_FAILURE`) is created once an attempt, by whichever rank of all nodes comes first:
ranks that lose one of them fail within moments, and their launchers look at different times.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from clusterkit.core import files
from clusterkit.core.bounds import ExitCode, NodeName, Within
from clusterkit.core.errors import UserError
from clusterkit.core.model import NodeResult
from clusterkit.core.reading import open_regular
from clusterkit.core.records import record_of, text_of
from clusterkit.core.text import ESCAPES, NOT_IN_A_LINE
from clusterkit.core.text import cut as text_cut
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder

VARIABLE = "CK_FAILURE"
_MESSAGE = 1000
"""Characters of an exception's text that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """What stands in the file of the first rank that ended well."""

    node: NodeName
    rank: Annotated[int, Within(0, 10_000_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogThen:
    inode: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure(_Rank):
    """What stands in the file: the first rank that failed, of all nodes of this attempt."""

    exit_code: ExitCode
    """As a shell gives it: 128 + N for signal N."""
    message: str | None = None
    log: tuple[int, int] | None = None
    """Inode and size of the file that its output went to, when its end was noticed."""


def read_rank_failure(run: RunFolder, attempt: int) -> RankFailure | None:
    """Return which rank failed first; None where no launcher has told."""
    path = run.rank_failure(attempt)
    if path.name not in runfolder.listed(path.parent):
        return None
    document = files.read_json(path) or {}
    log = record_of(_LogThen, document.get("log"))
    message = cut((text_of(document, "message") or "").strip(), _MESSAGE) or None
    where = [log.inode, log.size] if log is not None else None
    found = record_of(RankFailure, {**document, "message": message, "log": where})
    return found if found is not None and found.exit_code else None


def _ended_before(run: RunFolder, attempt: int) -> str | None:
    """Return which rank had ended well before the first one failed; None where none had."""
    failure = run.rank_failure(attempt)
    ended = failure.with_name(f"{failure.name}.ended")
    if ended.name not in runfolder.listed(ended.parent):
        return None
    try:
        early = ended.lstat().st_mtime_ns <= failure.lstat().st_mtime_ns
    except OSError:
        return None
    record = record_of(_Rank, files.read_json(ended)) if early else None
    return f"rank {record.rank} on {record.node}" if record is not None else None


def explain(run: RunFolder, me: Identity, ended: NodeResult, *, since: int) -> NodeResult:
    """Add to how the command ended which rank it was, and its words from byte `since` of the log.

    A launcher has exit codes of its own: that of the rank counts. Where the first rank to fail is
    one of another node, this node has failed as a consequence.
    """
    if ended.exit_code == 0 or ended.reason is not None:
        return ended
    first = read_rank_failure(run, me.attempt)
    log = run.log(me.rank)
    if first is not None and first.node != me.name and not _goes_on_without(run):
        return dataclasses.replace(ended, exit_code=first.exit_code, reason="peer")
    if first is None or first.node != me.name:
        output = last_words(log, since=since)
        return dataclasses.replace(
            ended, tail=bounded((*output, *explain_missing(run, me, output)))
        )
    return dataclasses.replace(
        ended,
        exit_code=first.exit_code,
        rank=first.rank,
        message=first.message,
        ended_before=_ended_before(run, me.attempt),
        tail=last_words(log, since=since, until=first.log, rank=first.rank),
    )


def _goes_on_without(run: RunFolder) -> bool:
    """Tell whether the job may go on without the node that failed first."""
    submission = runfolder.read_submission(run)
    return submission is not None and submission.least is not None


LINES = 20
SIZE = 4096
"""Bytes of all lines together, as UTF-8: they go into a small file, and through one call to the
first node of a job over ssh."""
_WIDTH = 400
_WINDOW = 1 << 18
"""How much of the log is looked at: ranks print at once, and launchers report at length."""

_OF_RANK = re.compile(r"\[rank\d+\]:")
_REPORT = re.compile(
    r"\btorch/distributed/elastic/\S+\.py:\d+\]|\[launch\.py:\d+:sigkill_handler\]"
)
"""Lines with which torchrun and DeepSpeed's launcher begin to report that a rank has failed."""
_MARKS = re.compile(r"[ ~^]+")
"""What Python prints below a line of source."""


def last_words(
    log: Path, *, since: int = 0, until: tuple[int, int] | None = None, rank: int | None = None
) -> tuple[str, ...]:
    """Return the last lines of a log from byte `since` on; empty where it cannot be read.

    They end at the size in `until`, where the inode there is that of the log.

    Of a known rank they end where its launcher begins to report. They are its own traceback where
    PyTorch printed one (its lines begin with `[rankR]: `), and else without those of other ranks.
    """
    lines = [_clean(line) for line in _read_end(log, since, until).split("\n")]
    lines = [line for line in lines if line and not _MARKS.fullmatch(_OF_RANK.sub("", line))]
    if rank is not None:
        lines = _before_report(lines)
        prefix = f"[rank{rank}]: "
        own = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        has_traceback = any(line.startswith("Traceback (most recent call last)") for line in own)
        others = [line for line in lines if not _OF_RANK.match(line) or line.startswith(prefix)]
        lines = own if has_traceback else others
    return bounded(lines)


def cut(text: str, size: int) -> str:
    """Return `text` without what a terminal would act on, and not longer than `size`."""
    return text_cut(NOT_IN_A_LINE.sub(" ", ESCAPES.sub("", text)).rstrip(), size)


def _read_end(log: Path, since: int, until: tuple[int, int] | None) -> str:
    try:
        with os.fdopen(open_regular(log), "rb") as stream:
            about = os.fstat(stream.fileno())
            end = about.st_size
            if until is not None and until[0] == about.st_ino:
                end = min(end, until[1])
            begin = max(since, end - _WINDOW, 0)
            stream.seek(begin)
            data = stream.read(max(0, end - begin))
    except OSError:
        return ""
    if begin > since:
        data = data.partition(b"\n")[2]  # the first line is not whole
    return data.decode(errors="replace")


def _clean(line: str) -> str:
    """Return what a terminal would show of a line: of a progress bar, its last state."""
    states = [state for state in line.split("\r") if state.strip()]
    return cut(states[-1].expandtabs(4), _WIDTH) if states else ""


def _before_report(lines: Sequence[str]) -> list[str]:
    at = next((n for n in range(len(lines), 0, -1) if _REPORT.search(lines[n - 1])), None)
    if at is None:
        return list(lines)
    while at and _REPORT.search(lines[at - 1]):
        at -= 1
    return list(lines[:at])


def bounded(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the last of `lines`, as many as may be kept of a node."""
    kept: list[str] = []
    room = SIZE
    for line in reversed(lines[-LINES:]):
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    return tuple(reversed(kept))


_MISSING = re.compile(r"No module named '?([A-Za-z_]\w*)")
"""What Python says: of an import with quotes, of `python -m` without."""


def explain_missing(run: RunFolder, me: Identity, output: Sequence[str]) -> tuple[str, ...]:
    """Return what to do where the last words are that the framework's package is missing.

    The lines are added to the log of the node as well. Whatever else a script imports, its own last
    words have named.
    """
    found = [match[1] for line in output if (match := _MISSING.search(line))]
    plan = files.read_json(run.plan) if found else None
    lines = _lines(plan, me, found[-1]) if plan is not None else ()
    with suppress(UserError):  # the disk may be full, and the result holds them
        for line in lines:
            files.append_line(run.log(me.rank), line)
    return lines


def _lines(plan: Mapping[str, Any], me: Identity, module: str) -> tuple[str, ...]:
    # Loads the frameworks and the catalogue of images, and only here.
    from clusterkit.images.packages import framework_called, module_of, remedies  # noqa: PLC0415

    framework = framework_called(plan.get("framework"))
    package = framework.package_name if framework is not None else None
    if framework is None or package is None or module not in {module_of(package), framework.name}:
        return ()
    container = plan.get("container")
    python = (plan.get("cluster") or {}).get("python") or "python3"
    whose = f"the image {container['image']}" if container else f"{python} on {me.name}"
    first, *others = remedies(framework, "python3" if container else python)
    what = f"framework {framework.name} needs the package {package}, which {whose} does not have"
    return (f"clusterkit: {what}", f"hint: {first}", *(f"  {other}" for other in others))
