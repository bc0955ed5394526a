"""Whether a job starts again, on which nodes: what `--requeue`, `--restarts` and `--spares` mean.

A job starts again after what happened to it (its time limit, a lost node, hardware that failed),
and after what its script did only where that was asked for. After a failure it does on the nodes
that it has, as long as `--restarts` allows, and else from the queue. Nothing here does anything.

An elastic job (`--nodes MIN:MAX`) survives some losses without that: its first node serves what the
others meet at, so its end is the end of the job; of the others, any may go while at least MIN nodes
are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile

from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import JobState, NodeResult
from clusterkit.core.timing import scaled
from clusterkit.executors.run.runfolder import Submission

_TWICE = 2
_SHORT_S = 60.0
"""An attempt that took less has hardly done anything."""
_PAUSE_S = scaled(5.0, 2.0)
_LONGEST_PAUSE_S = 300.0
_ENDED_BY_OTHERS = frozenset({JobState.FAILED, JobState.TIMEOUT, JobState.PREEMPTED})


def may_follow(submission: Submission | None, attempt: int) -> bool:
    """Tell whether the job has another attempt left after this one."""
    return submission is not None and attempt + 1 < submission.most_attempts


def is_restart(submission: Submission, state: JobState, restarted: int) -> bool:
    """Tell whether an attempt that ended in `state` is followed on the nodes that the job has.

    `restarted` counts how often that was so before.
    """
    return state is JobState.FAILED and restarted < submission.restarts


def pause_s(lasted: Sequence[float]) -> float:
    """Return for how long to wait before the next of attempts that took so many seconds each.

    The first short one costs nothing; of several in a row each makes the next wait twice as long.
    """
    short = len(list(takewhile(lambda seconds: seconds < _SHORT_S, reversed(lasted))))
    return min(_LONGEST_PAUSE_S, _PAUSE_S * 2 ** min(short - _TWICE, 32)) if short > 1 else 0.0


def restarts(
    state: JobState,
    failure: NodeResult | None,
    *,
    attempt: int,
    left_out: int,
    submission: Submission,
    excused: bool = False,
    restarted: int = 0,
) -> bool:
    """Tell whether a job whose attempt number `attempt` has ended like this gets another one.

    `failure` is the first failure of that attempt; without one, a job that failed was lost with
    its nodes. `left_out` counts the nodes that no attempt may use any more. `excused` says that the
    command failed, and may do better in another attempt; `restarted` counts the attempts before
    this one that were followed on the nodes that the job has.
    """
    in_place = is_restart(submission, state, restarted)
    if state not in _ENDED_BY_OTHERS or not (in_place or attempt - restarted < submission.requeue):
        return False
    if left_out > submission.dispensable:
        return False
    return excused or failure is None or failure.lost is not None or failure.unfit is not None


def is_the_same(now: Collection[NodeResult], before: Collection[NodeResult]) -> bool:
    """Tell whether two attempts failed of the same at the same step, or both before any."""
    return bool(_failed_of(now) & _failed_of(before)) and last_step(now) == last_step(before)


def last_step(results: Iterable[NodeResult]) -> int | None:
    """Return the last step that the nodes of an attempt tell of; None where none tells."""
    return max((result.step for result in results if result.step is not None), default=None)


def _failed_of(results: Iterable[NodeResult]) -> frozenset[str | int]:
    """Return what an attempt failed of: rules of diagnose, and exit codes that none explains."""
    ended = (r for r in results if r.lost is None and r.unfit is None)
    failed = [r for r in ended if r.exit_code and r.reason in {None, "peer"}]
    first = [r for r in failed if r.fault] or [r for r in failed if r.reason is None]
    return frozenset(result.rule or result.exit_code for result in first)


def nodes_to_leave_out(failures: Iterable[NodeResult]) -> frozenset[str]:
    """Return the nodes that were lost by themselves in two attempts, or unhealthy in one.

    One of nodes that lost each other may have been a second time, but never twice.
    """
    failures = tuple(failures)
    lost = [failure for failure in failures if failure.lost is not None]
    alone = Counter(failure.node for failure in lost if failure.among is None)
    shared = Counter(node for f in lost for node in listed_nodes(f.among))
    return frozenset(
        {failure.node for failure in failures if failure.found}
        | {node for node, times in alone.items() if times + shared[node] >= _TWICE}
    )


def listed_nodes(nodes: str | None) -> tuple[str, ...]:
    """Return the nodes of a hostlist that a node has written; none where it is not a hostlist."""
    try:
        return hostlist.expand(nodes or "")
    except UserError:
        return ()


def choose_nodes(
    names: Sequence[str], spares: Sequence[str], without: Collection[str]
) -> tuple[str, ...]:
    """Return `names` in their order, with a spare in the place of each that is left out.

    Raises:
        RemoteError: there are not enough spares.
    """
    free = [name for name in spares if name not in without and name not in names]
    gone = [name for name in names if name in without]
    if len(gone) > len(free):
        have = f"{len(free)} spare{'s' * (len(free) != 1)}" if spares else "no spares"
        raise RemoteError(
            f"{', '.join(gone)} cannot be used, and the job has {have} left",
            hint="fix the node, or submit again with --spares or --exclude",
        )
    return tuple(free.pop(0) if name in without else name for name in names)


def fatal(results: Iterable[NodeResult], *, n_nodes: int, min_nodes: int) -> NodeResult | None:
    """Return the failure that ends a job that needs `min_nodes`; None where it is still running.

    That is the first of the failures that together leave too few nodes, or not the first one.
    """
    failed = [result for result in results if result.exit_code and result.reason is None]
    enough = n_nodes - len(failed) >= min_nodes and all(result.node_rank for result in failed)
    return None if enough else min(failed, key=lambda result: result.ended_at, default=None)


def succeeded(results: Iterable[NodeResult], *, min_nodes: int) -> bool:
    """Tell whether the training has ended well, whatever became of nodes before."""
    ranks = {result.node_rank for result in results if result.exit_code == 0}
    return 0 in ranks and len(ranks) >= min_nodes


def losses(rounds: Sequence[Sequence[str]], results: Iterable[NodeResult]) -> str | None:
    """Return which nodes an attempt has gone on without, in words; None where all are there.

    `rounds` are the names of the nodes that trained together, each time they had to find each
    other again.
    """
    last = set(rounds[-1]) if rounds else set()
    gone = dict.fromkeys(name for names in rounds for name in names if name not in last)
    gone |= dict.fromkeys(result.node for result in results if result.exit_code)
    return f"without {', '.join(gone)}" if gone else None
