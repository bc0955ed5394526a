"""Conclude on the nodes that a job has ended for good, and have it told (`notify.py`).

The first node does; where that has gone, the second. On Slurm it waits for the results of the
others, over ssh for their calls. A job of which no node is left is told of by nobody.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from clusterkit.core.model import JobState, NodeResult
from clusterkit.core.timing import scaled
from clusterkit.executors.node import watch
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.node.notify import Ending, notify, ways_of
from clusterkit.executors.node.partition import PeerState
from clusterkit.executors.node.peers import is_told_to_end
from clusterkit.executors.run import attempts, node_results, restarts, runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission

_LAST_WORDS_S = scaled(9.0, 4.0)
"""How long nodes that are told to end may take to say how they did (`Timeouts.grace_s`)."""
_POLL_S = scaled(1.0, 0.25)
_SECOND = 1


def tell_on_slurm(run: RunFolder, me: Identity, submission: Submission, mine: NodeResult) -> None:
    """Tell that the job has ended, where this node has to and no other attempt follows."""
    first_alone = submission.once or submission.least is not None
    if me.rank > (0 if first_alone else _SECOND) or not ways_of(run, JobState.FAILED):
        return
    if not _await_the_others(run, me, submission, mine):
        return
    failure = node_results.first_failure(run, me.attempt)
    results = node_results.read_results(run, me.attempt).nodes
    cancelled = runfolder.is_cancelled(run)
    state, reason = _conclude(results, failure, submission, cancelled=cancelled, of=me.of)
    by_others = {one.reason for one in results if one.exit_code} == {node_results.TERMINATED}
    if failure is None and by_others and watch.is_cancelled():
        state, reason = JobState.CANCELLED, None
    if not run.requeued(me.attempt).exists():
        _tell(run, submission, mine, results, failure, (state, reason), me.attempt)


def tell_over_ssh(
    run: RunFolder, rank: int, known: PeerState, mine: NodeResult, *, attempt: int
) -> None:
    """Tell that the job has ended, where this node has to: all have ended, and told the first."""
    failure, submission = known.failure, runfolder.read_submission(run)
    head_has_gone = failure is not None and _is_gone(failure)
    if submission is None or rank != (_SECOND if head_has_gone else 0):
        return
    known.look()
    results = node_results.read_results(run, attempt).nodes or (mine,)
    found = _conclude(results, failure, submission, cancelled=known.cancelled, of=0)
    _tell(run, submission, mine, results, failure, found, attempt)


def _await_the_others(
    run: RunFolder, me: Identity, submission: Submission, mine: NodeResult
) -> bool:
    """Wait until nothing can change any more how the job ends; False where the first node tells it.

    Nodes that are killed say nothing, and so are not waited for long once all are told to end.
    """
    expected = 1 if submission.once else me.of
    until = time.monotonic() + _LAST_WORDS_S if submission.least is not None else None
    while True:
        failure = node_results.first_failure(run, me.attempt)
        gone = failure is not None and failure.lost is not None
        if me.rank and node_results.has_result(run, 0, me.attempt):
            return False
        if me.rank and failure is not None and _is_gone(failure):
            return True
        settled = failure is not None and not attempts.may_follow(submission, me.attempt)
        if not me.rank and (
            settled or node_results.count_ended(run, me.attempt) + gone >= expected
        ):
            return True
        if until is None and (mine.reason is not None or is_told_to_end()):
            until = time.monotonic() + _LAST_WORDS_S
        if until is not None and time.monotonic() >= until:
            return True
        time.sleep(_POLL_S)


def _is_gone(failure: NodeResult) -> bool:
    """Tell whether a failure is that the first node has gone, and no other may be to blame."""
    return failure.lost is not None and failure.node_rank == 0 and not failure.among


def _conclude(
    results: Sequence[NodeResult],
    failure: NodeResult | None,
    submission: Submission,
    *,
    cancelled: bool,
    of: int,
) -> tuple[JobState, str | None]:
    if cancelled and failure is not None and failure.lost is not None:
        failure = None  # nodes that end one after the other miss each other
    least = submission.least
    if least is not None and failure is None and attempts.succeeded(results, min_nodes=least):
        return JobState.SUCCEEDED, None
    found = node_results.how_it_failed(results, failure, cancelled=cancelled)
    if found is not None:
        return found
    if len(results) < (1 if submission.once else of):
        silence = node_results.silence_of(results)
        return JobState.FAILED, silence or f"{len(results)} of {of} nodes have reported"
    return JobState.SUCCEEDED, None


def _tell(
    run: RunFolder,
    submission: Submission,
    mine: NodeResult,
    results: Sequence[NodeResult],
    failure: NodeResult | None,
    found: tuple[JobState, str | None],
    attempt: int,
) -> None:
    state, reason = found
    if restarts.may_start_again(run, submission, state, attempt):
        return
    succeeded = state is JobState.SUCCEEDED
    ending = Ending(
        state=state,
        reason=reason,
        exit_code=0 if succeeded else node_results.first_exit_code(results, failure),
        attempt=attempt,
        node=mine.node,
    )
    notify(run, submission, ending, run.log(mine.node_rank))
