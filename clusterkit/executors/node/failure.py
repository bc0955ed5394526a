"""Which rank failed first, as its launcher tells it in a file of the run folder.

The file (`CK_FAILURE`) is created once an attempt, by whichever rank of all nodes comes first:
ranks that lose one of them fail within moments, and their launchers look at different times.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from clusterkit.core import files
from clusterkit.core.bounds import ExitCode, NodeName, Within
from clusterkit.core.records import record_of, text_of
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.node.log_tail import bounded, cut, last_words
from clusterkit.executors.node.missing_package import explain_missing
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder

VARIABLE = "CK_FAILURE"
_MESSAGE = 1000
"""Characters of an exception's text that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the command of a node ended; the fields of `NodeResult` that say so."""

    exit_code: int
    reason: str | None = None
    rank: int | None = None
    message: str | None = None
    ended_before: str | None = None
    tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """What has to stand in the file of the first rank that ended well."""

    node: NodeName
    rank: Annotated[int, Within(0, 10_000_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What has to stand in the file."""

    node: NodeName
    rank: Annotated[int, Within(0, 10_000_000)]
    exit_code: ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogThen:
    inode: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """What stands in the file: the first rank that failed, of all nodes of this attempt."""

    node: str
    rank: int
    exit_code: int
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
    told = record_of(_Told, document)
    if told is None or told.exit_code == 0:
        return None
    message = text_of(document, "message")
    log = record_of(_LogThen, document.get("log"))
    return RankFailure(
        node=told.node,
        rank=told.rank,
        exit_code=told.exit_code,
        message=cut(message.strip(), _MESSAGE) or None if message is not None else None,
        log=(log.inode, log.size) if log is not None else None,
    )


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
    told = record_of(_Ended, files.read_json(ended)) if early else None
    return f"rank {told.rank} on {told.node}" if told is not None else None


def explain(run: RunFolder, me: Identity, ended: Ending, *, since: int) -> Ending:
    """Add to how the command ended which rank it was, and its words from byte `since` of the log.

    A launcher has exit codes of its own: that of the rank counts. Where the first rank to fail is
    one of another node, this node has failed as a consequence.
    """
    if ended.exit_code == 0 or ended.reason is not None:
        return ended
    first = read_rank_failure(run, me.attempt)
    log = run.log(me.rank)
    if first is not None and first.node != me.name and not _goes_on_without(run):
        return Ending(exit_code=first.exit_code, reason="peer")
    if first is None or first.node != me.name:
        words = last_words(log, since=since)
        return dataclasses.replace(ended, tail=bounded((*words, *explain_missing(run, me, words))))
    return Ending(
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
