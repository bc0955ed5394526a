"""What nodes of a job say of each other, and what of it counts.

Each node knows best of itself. That another one has gone, only the others can say; and one that
lies would say it of a healthy node. So what nodes have told is kept under their own names, and a
result of somebody else counts only where that node has none to show that contradicts it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePosixPath

from clusterkit.core import files
from clusterkit.core.model import NodeResult
from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh.layout import SshLayout


def told_failure(teller: int, attempt: int) -> PurePosixPath:
    """Return where the first failure of an attempt stands as one node has it."""
    return PurePosixPath("failures", f"told-{teller}-{attempt}.json")


def told_loss(teller: int, lost: int, attempt: int) -> PurePosixPath:
    """Return where it stands that a node says of another that it has gone."""
    return PurePosixPath("failures", f"told-{teller}-lost-{lost}-{attempt}.json")


def settle(run: RunFolder, layout: SshLayout, out_of_reach: Collection[str]) -> None:
    """Write down the nodes that have gone, as the others tell.

    Of those that can be asked (all but the nodes `out_of_reach`) only where they have ended, and
    not by their own doing.
    """
    attempt, of = layout.attempt, len(layout.names)
    for rank, node in enumerate(layout.names):
        losses = [
            result
            for teller in range(of)
            if teller != rank and (result := _told(run, told_loss(teller, rank, attempt)))
        ]
        own = node_results.read_result(run, rank, attempt)
        if not losses or (own is not None and own.lost is not None):
            continue
        if node in out_of_reach if own is None else _was_ended(own):
            node_results.replace_result(run, losses[0], attempt=attempt, of=of)


def decide_first_failure(run: RunFolder, layout: SshLayout) -> None:
    """Choose the first failure of the attempt from what the nodes have told.

    The first node heard of all. But a rank that was killed breaks those on other nodes, whose
    nodes may have been heard before its own.
    """
    attempt, of = layout.attempt, len(layout.names)
    told = ((rank, _told(run, told_failure(rank, attempt))) for rank in range(of))
    results = [
        believed
        for teller, failure in told
        if failure is not None and (believed := _believed(run, layout, teller, failure)) is not None
    ]
    killed = [r for r in results if r.lost is None and r.unfit is None and r.exit_code in _KILLED]
    if results:
        first = min(killed, key=lambda result: result.ended_at, default=results[0])
        node_results.note_failure(run, first, attempt=attempt, of=of)


def _believed(
    run: RunFolder, layout: SshLayout, teller: int, failure: NodeResult
) -> NodeResult | None:
    """Return what of a node's word on the first failure counts: of another, its own result."""
    rank = failure.node_rank
    if rank >= len(layout.names) or failure.node != layout.names[rank]:
        return None
    if rank == teller:
        return failure
    if failure.unfit is not None:  # which a node finds out itself
        return None
    own = node_results.read_result(run, rank, layout.attempt)
    if own is None or own.lost is not None or (failure.lost is not None and _was_ended(own)):
        return failure
    return own if own.exit_code and own.reason is None else None


def _was_ended(own: NodeResult) -> bool:
    """Tell whether a node has ended, and says that this was not its own doing."""
    return own.exit_code != 0 and own.reason is not None


def _told(run: RunFolder, name: PurePosixPath) -> NodeResult | None:
    return node_results.result_of(files.read_json(run.path / name))


_KILLED = frozenset({128 + 4, 128 + 7, 128 + 8, 128 + 9, 128 + 11})
"""Exit codes of what was killed (SIGKILL), or broke by itself (SIGILL, SIGBUS, SIGFPE, SIGSEGV);
SIGABRT is how NCCL ends what has lost its peers."""
