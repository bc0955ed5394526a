"""How the nodes of a run have ended, attempt by attempt, as it stands in the run folder."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit.core import files, reading
from clusterkit.core.bounds import NodeName
from clusterkit.core.errors import UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import JobState, NodeResult, OnHang, RequeueOn
from clusterkit.core.records import count_of, record_of
from clusterkit.core.text import cut
from clusterkit.executors.run import attempts
from clusterkit.executors.run.runfolder import SCHEMA, RunFolder, Submission, listed

LOST = 255
"""Exit code of a node that has gone; as ssh's own for a connection that broke."""

TERMINATED = "terminated"
TOLD_TO_END = frozenset({TERMINATED, "preempted"})
"""Reasons of nodes that the scheduler has ended."""


_RESULT = re.compile(r"node-([0-9]{1,5})-attempt-([0-9]{1,7})\.json")
_UNWRITTEN = re.compile(r"node-([0-9]{1,5})-attempt-([0-9]{1,7})\.unwritten")
_BRIEF = re.compile(r"([0-9]{1,3}) ([0-9]{1,5}) ([0-9]{1,4}) ([!-~]{1,255})( unbegun)?")
"""What its link says: exit code, nodes of the attempt, errno, name of the node."""
UNBEGUN = "could not begin"
"""Message of a node whose command was not started, for the disk took no more."""
_NUMBER = re.compile(r"[0-9]{1,7}")
_MOST_RESULTS = 64 << 20
"""Bytes of all results that are read; of 10,000 nodes, those of two attempts take 40 MiB."""
_LONGEST = 1000
"""Characters of what a node says of itself that are shown."""
_LARGEST_RESULT = 1 << 18
"""Bytes of one: its last lines and its message have 5 KiB, the list of 10,000 nodes at most 200."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """A line of the file of rounds."""

    nodes: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What the nodes of one attempt have reported so far, in rank order."""

    attempt: int
    of: int
    """Number of nodes in the attempt; 0 where none has reported."""
    nodes: tuple[NodeResult, ...]


def write_result(
    run: RunFolder, result: NodeResult, *, attempt: int, n_nodes: int, min_nodes: int | None = None
) -> None:
    """Write the result of one of `n_nodes` in this attempt (the number of restarts before it).

    Where `min_nodes` are enough for the job to go on, only what leaves fewer is its failure.
    """
    failed = result.exit_code != 0 and result.reason is None
    if failed and min_nodes is None:
        note_failure(run, result, attempt=attempt, n_nodes=n_nodes)
    given_up = min_nodes is not None and _is_given_up(run, result.node_rank, attempt)
    if not given_up:
        replace_result(run, result, attempt=attempt, n_nodes=n_nodes)
    if failed and min_nodes is not None:
        # After its own result is there: of nodes that fail at once, the last one sees them all.
        there = [r for r in map(result_of, _documents(run, attempt)) if r is not None]
        failure = attempts.fatal(there, n_nodes=n_nodes, min_nodes=min_nodes)
        if failure is not None:
            note_failure(run, failure, attempt=attempt, n_nodes=n_nodes)


def note_unwritten(
    run: RunFolder, result: NodeResult, error: UserError, *, attempt: int, of: int
) -> None:
    """Leave what matters of a result that could not be written, as the target of a link.

    That stands in the inode, and so has a place on most disks that are full.
    """
    cause = error.__cause__
    number = cause.errno if isinstance(cause, OSError) and cause.errno else errno.EIO
    brief = f"{result.exit_code} {of} {number} {result.node}"
    brief += " unbegun" * (result.unfit is not None or result.message == UNBEGUN)
    with suppress(UserError):
        files.create_link(_unwritten(run, result.node_rank, attempt), brief)


def _unwritten(run: RunFolder, node_rank: int, attempt: int) -> Path:
    return run.result(node_rank, attempt).with_suffix(".unwritten")


def _read_brief(path: Path, node_rank: int, attempt: int) -> dict[str, Any] | None:
    try:
        found = _BRIEF.fullmatch(os.readlink(path))  # noqa: PTH115 - for the text, which is not a path
        at = path.lstat().st_mtime
    except OSError:
        return None
    if found is None:
        return None
    result = NodeResult(
        node_rank=node_rank,
        node=found[4],
        exit_code=min(int(found[1]), LOST),
        started_at=at,
        ended_at=at,
        message=UNBEGUN if found[5] else None,
        unwritten=os.strerror(int(found[3])),
    )
    return document_of(result, attempt, int(found[2]))


def unwritten_in_words(results: Iterable[NodeResult]) -> str | None:
    """Return which nodes could not write everything, and why; None where all could."""
    found = [result for result in results if result.unwritten is not None]
    if not found:
        return None
    who = hostlist.fold_set(result.node for result in found)
    begun = any(result.message != UNBEGUN for result in found)
    what = "write all of the output, or how it ended" if begun else "begin, or write anything"
    return f"{who} could not {what}: {found[0].unwritten}"


def unwritten_failure(results: Iterable[NodeResult]) -> str | None:
    """Return how the first of those failed that could not write everything, if one had begun."""
    failed = [r for r in results if r.unwritten and r.exit_code and r.message != UNBEGUN]
    return failure_text(min(failed, key=lambda result: result.ended_at)) if failed else None


def replace_result(run: RunFolder, result: NodeResult, *, attempt: int, n_nodes: int) -> None:
    """Write the result of a node, whatever was there."""
    files.write_json(run.result(result.node_rank, attempt), document_of(result, attempt, n_nodes))


def _is_given_up(run: RunFolder, node_rank: int, attempt: int) -> bool:
    """Tell whether the others have gone on without this node, which may not know it."""
    there = read_result(run, node_rank, attempt)
    return there is not None and there.lost is not None


def _documents(run: RunFolder, attempt: int) -> list[dict[str, Any]]:
    names = [name for name in listed(run.nodes) if name.endswith(f"-attempt-{attempt}.json")]
    return [document for _, document in _read_all(run.nodes, names)]


def _read_all(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of these files and the JSON objects in them, as many as fit into memory."""
    room = _MOST_RESULTS
    for name in names:
        size = reading.size_of(folder / name)
        room -= size if size <= _LARGEST_RESULT else 0
        if room < 0:
            return
        document = files.read_json(folder / name) if size <= _LARGEST_RESULT else None
        if document is not None:
            yield name, document


def read_rounds(run: RunFolder, attempt: int) -> tuple[tuple[str, ...], ...]:
    """Return the nodes that trained together in an elastic attempt, round by round."""
    try:
        lines = reading.read_bytes(run.rounds(attempt)).splitlines()
    except OSError:
        return ()
    found = (record_of(_Round, files.parse_json(line)) for line in lines)  # the last may be torn
    return tuple(one.nodes for one in found if one is not None)


def note_failure(run: RunFolder, result: NodeResult, *, attempt: int, n_nodes: int) -> None:
    """Write down the first failure of this attempt; exclusive creation decides which that is.

    A node adds to its own what it found of itself afterwards.
    """
    path, document = run.failures / f"{attempt}.json", document_of(result, attempt, n_nodes)
    if not files.create_text(path, json.dumps(document)) and result.fault is not None:
        first = first_failure(run, attempt)
        if first is not None and first.node_rank == result.node_rank:
            files.write_json(path, document)


def read_result(run: RunFolder, node_rank: int, attempt: int) -> NodeResult | None:
    """Return the result of one node in this attempt, if it has ended."""
    document = files.read_json(run.result(node_rank, attempt))
    if document is None:
        document = _read_brief(_unwritten(run, node_rank, attempt), node_rank, attempt)
    result = result_of(document)
    return result if result is not None and result.node_rank == node_rank else None


def has_result(run: RunFolder, node_rank: int, attempt: int) -> bool:
    """Tell whether a node has ended in this attempt; asked of a shared folder again and again."""
    there = listed(run.nodes)
    return not there.isdisjoint(
        {run.result(node_rank, attempt).name, _unwritten(run, node_rank, attempt).name}
    )


def count_ended(run: RunFolder, attempt: int) -> int:
    """Return how many nodes have ended in this attempt."""
    ends = (f"-attempt-{attempt}.json", f"-attempt-{attempt}.unwritten")
    return len({Path(name).stem for name in listed(run.nodes) if name.endswith(ends)})


def read_results(run: RunFolder, attempt: int | None = None) -> Results:
    """Return the results of an attempt, or of the latest that any node reports."""
    matching = [one for one in read_attempts(run) if attempt in {None, one.attempt}]
    return matching[-1] if matching else Results(attempt=attempt or 0, of=0, nodes=())


def read_attempts(run: RunFolder) -> tuple[Results, ...]:
    """Return the results of every attempt that any node reports, oldest first."""
    found: dict[int, list[tuple[int, NodeResult]]] = {}
    there = listed(run.nodes)
    names = [name for name in there if _RESULT.fullmatch(name)]
    for name, document in _read_all(run.nodes, names):
        result, attempt = result_of(document), count_of(document, "attempt")
        if result is not None and run.result(result.node_rank, attempt).name == name:
            found.setdefault(attempt, []).append((count_of(document, "of"), result))
    for name in there:
        brief = _UNWRITTEN.fullmatch(name)
        if brief is not None and f"{Path(name).stem}.json" not in there:
            rank, attempt = int(brief[1]), int(brief[2])
            summary = _read_brief(run.nodes / name, rank, attempt)
            result = result_of(summary)
            if result is not None and summary is not None:
                found.setdefault(attempt, []).append((count_of(summary, "of"), result))
    return tuple(
        Results(
            attempt=attempt,
            of=max(of for of, _ in reported),
            nodes=tuple(sorted((result for _, result in reported), key=lambda r: r.node_rank)),
        )
        for attempt, reported in sorted(found.items())
    )


def ended_well(run: RunFolder, submission: Submission, attempt: int) -> bool:
    """Tell whether all nodes that this attempt needed have reported that they ended well.

    One whose script was given a notice may have saved, given the job back and left: it has not.
    """
    first = read_result(run, 0, attempt)
    if first is None or first.exit_code or first.noticed:
        return False  # each of perhaps 10,000 nodes asks, and need not read what the others wrote
    return attempts.succeeded(read_results(run, attempt).nodes, min_nodes=submission.tasks)


def latest_attempt(run: RunFolder) -> int:
    """Return the number of the latest attempt that any node has ended or failed in."""
    return max([read_results(run).attempt, *_failed_attempts(run)])


def first_failure(run: RunFolder, attempt: int) -> NodeResult | None:
    """Return the result of the node that failed first and by itself in this attempt, if any."""
    name = f"{attempt}.json"
    there = name in listed(run.failures)
    return result_of(files.read_json(run.failures / name)) if there else None


def read_failures(run: RunFolder) -> tuple[NodeResult, ...]:
    """Return the first failure of each attempt that had one, and every node that was unhealthy."""
    names = [f"{number}.json" for number in sorted(_failed_attempts(run))]
    found = (result_of(document) for _, document in _read_all(run.failures, names))
    reported = (result for attempt in read_attempts(run) for result in attempt.nodes)
    unhealthy = (result for result in reported if result.found)
    return (*(failure for failure in found if failure is not None), *unhealthy)


def _failed_attempts(run: RunFolder) -> list[int]:
    """Return the attempts of which a first failure is known, in no order."""
    stems = (name.removesuffix(".json") for name in listed(run.failures) if name.endswith(".json"))
    return [int(stem) for stem in stems if _NUMBER.fullmatch(stem)]


def left_out(run: RunFolder) -> frozenset[str]:
    """Return the nodes that no later attempt is to use."""
    return attempts.nodes_to_leave_out(read_failures(run))


def is_excused(
    submission: Submission,
    results: Iterable[NodeResult],
    first: NodeResult | None,
    in_vain: str | None,
) -> bool:
    """Tell whether a command that failed may do better in another attempt, unless it did not.

    The first failure is known before its node has written its result, and may be all that it wrote.
    """
    if in_vain is not None:
        return False
    nodes = (*results, *([first] if first is not None else ()))
    failed = any(result.exit_code and result.reason is None for result in nodes)
    any_failure = submission.requeue_on is RequeueOn.FAILURE and submission.least is None
    hung = any(result.hung for result in nodes) and submission.on_hang is OnHang.RESTART
    return hung or any(result.fault for result in nodes) or (failed and any_failure)


def why_in_vain(run: RunFolder, attempt: int) -> str | None:
    """Return, in words, that an attempt failed as the one before; None where it did not.

    What a node's own checks found is believed again and again, what output says is not: it is the
    script's.
    """
    if not attempt:
        return None
    now = read_results(run, attempt).nodes
    checked = any(result.fault and result.rule is None for result in now)
    if checked or not attempts.is_the_same(now, read_results(run, attempt - 1).nodes):
        return None
    step = attempts.last_step(now)
    at = f"at step {step}" if step is not None else "with no step told"
    return f"as in the attempt before, {at}"


def in_a_line(found: str) -> str:
    """Return what a node says of itself as one line of bounded length, whatever it says."""
    return cut(" ".join(found.split()), _LONGEST)


def failure_text(result: NodeResult) -> str:
    """Return how a node failed, in words."""
    if result.unfit is not None:
        return f"{result.node} is unhealthy: {in_a_line(result.unfit)}"
    if result.lost is not None:
        return f"{'' if result.among else f'{result.node} '}{in_a_line(result.lost)}"
    if result.hung is not None:
        return in_a_line(result.hung)
    who = result.node if result.rank is None else f"{result.node}: rank {result.rank}"
    before = result.ended_before
    after = f"; before it, {before} had ended with exit code 0" if before is not None else ""
    if result.fault is not None:
        after += f"; {result.node} is unhealthy: {in_a_line(result.fault)}"
    if result.exit_code - 128 in signal.valid_signals():
        return f"{who} was ended by signal {result.exit_code - 128}{after}"
    return f"{who} exited with {result.exit_code}{after}"


def silence_of(results: Iterable[NodeResult]) -> str | None:
    """Return which nodes have left no result, in words; None where nobody knows, or all have.

    A worker that is killed leaves none, nor does one whose node goes, and Slurm ends the others.
    """
    there = list(results)
    among = next((result.among for result in there if result.among), None)
    try:
        silent = dict.fromkeys(hostlist.expand(among)) if among else {}
    except UserError:
        return None
    for result in there:
        silent.pop(result.node, None)
    if not silent:
        return None
    have, who = ("have", "the nodes") if len(silent) > 1 else ("has", "the node")
    return f"{hostlist.fold(silent)} {have} left no word: clusterkit's worker there, or {who}, died"


def how_it_failed(
    results: Sequence[NodeResult], failure: NodeResult | None, *, cancelled: bool
) -> tuple[JobState, str | None] | None:
    """Return the state in which an attempt has not ended well, and why; None where no node says so.

    `failure` is the first one.
    """
    if failure is not None:
        return JobState.FAILED, failure_text(failure)
    if cancelled:
        return JobState.CANCELLED, None
    failed = [result for result in results if result.exit_code]
    if not failed:
        return None
    return why_told_to_end(results) or (JobState.FAILED, failure_text(failed[0]))


def why_told_to_end(results: Iterable[NodeResult]) -> tuple[JobState, str | None] | None:
    """Return what the reasons of those that failed come to; None where they tell no more."""
    there = list(results)
    reasons = {result.reason for result in there if result.exit_code}
    if reasons == {"timeout"}:
        return JobState.TIMEOUT, None
    if "preempted" in reasons and reasons <= TOLD_TO_END:  # not all may have heard why
        return JobState.PREEMPTED, None
    if reasons == {TERMINATED}:  # the exit code of a rank that obeys is no cause
        return JobState.FAILED, silence_of(there) or "it was told to end (SIGTERM)"
    return None


def first_exit_code(results: Iterable[NodeResult], failure: NodeResult | None) -> int | None:
    """Return the exit code of the first failure, or of the node that failed first."""
    failed = [failure] if failure is not None else [one for one in results if one.exit_code]
    return min(failed, key=lambda one: one.ended_at).exit_code if failed else None


def lost(node_rank: int, node: str, reason: str, *, among: Iterable[str] = ()) -> NodeResult:
    """Return the result of a node that has gone; `reason` says how the others noticed.

    Where it may as well be another of the nodes `among`, they say so of all of them.
    """
    now = time.time()
    return NodeResult(
        node_rank=node_rank,
        node=node,
        exit_code=LOST,
        started_at=now,
        ended_at=now,
        lost=reason,
        among=hostlist.fold(among) or None,
    )


def result_of(document: Mapping[str, Any] | None) -> NodeResult | None:
    """Return the result that a JSON object describes; None where it describes none."""
    return record_of(NodeResult, document)


def document_of(result: NodeResult, attempt: int, of: int) -> dict[str, Any]:
    """Return the result of a node in one attempt, of so many nodes, as its file holds it."""
    return {"schema": SCHEMA, "attempt": attempt, "of": of, **files.plain(result)}
