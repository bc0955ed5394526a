"""Whether a job starts again, and on which nodes: what `--requeue N` and `--spares K` mean.

A job starts again after what happened to it (its time limit, a lost node, a node that its checks
found unfit), never after what its script did. Nothing here does anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import JobState, NodeResult
from clusterkit.executors.run.runfolder import Submission

_TWICE = 2
_ENDED_BY_OTHERS = frozenset({JobState.FAILED, JobState.TIMEOUT, JobState.PREEMPTED})


def starts_again(
    state: JobState,
    failure: NodeResult | None,
    *,
    attempt: int,
    left_out: int,
    submission: Submission,
) -> bool:
    """Tell whether a job whose attempt number `attempt` has ended like this gets another one.

    `failure` is the first failure of that attempt; without one, a job that failed was lost with
    its nodes. `left_out` counts the nodes that no attempt may use any more.
    """
    if state not in _ENDED_BY_OTHERS or attempt >= submission.requeue:
        return False
    if left_out > submission.dispensable:
        return False
    return failure is None or failure.lost is not None or failure.unfit is not None


def nodes_to_leave_out(failures: Iterable[NodeResult]) -> frozenset[str]:
    """Return the nodes that failed by themselves in two attempts, or their checks in one.

    One of nodes that lost each other may have been a second time, but never twice.
    """
    failures = tuple(failures)
    lost = [failure for failure in failures if failure.lost is not None]
    alone = Counter(failure.node for failure in lost if failure.among is None)
    shared = Counter(node for f in lost if f.among for node in _listed(f.among))
    return frozenset(
        {failure.node for failure in failures if failure.unfit is not None}
        | {node for node, times in alone.items() if times + shared[node] >= _TWICE}
    )


def _listed(nodes: str) -> tuple[str, ...]:
    """Return the nodes of a hostlist that a node has written; none where it is no hostlist."""
    try:
        return hostlist.expand(nodes)
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
            hint="mend the node, or submit again with --spares or --exclude",
        )
    return tuple(free.pop(0) if name in without else name for name in names)
