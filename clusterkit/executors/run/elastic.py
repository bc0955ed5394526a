"""Elastic jobs (`--nodes MIN:MAX`): which losses they survive, and how they have ended.

The first node serves what the others meet at, so its end is the end of the job; of the others, any
may go while at least MIN nodes are left. Nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusterkit.core.model import NodeResult


def fatal(results: Iterable[NodeResult], *, of: int, least: int) -> NodeResult | None:
    """Return the failure that ends a job of `of` nodes that needs `least`; None where it goes on.

    That is the first of the failures that together leave too few nodes, or not the first one.
    """
    failed = [result for result in results if result.exit_code and result.reason is None]
    enough = of - len(failed) >= least and all(result.node_rank for result in failed)
    return None if enough else min(failed, key=lambda result: result.ended_at, default=None)


def succeeded(results: Iterable[NodeResult], *, least: int) -> bool:
    """Tell whether the training has ended well, whatever became of nodes before."""
    ranks = {result.node_rank for result in results if result.exit_code == 0}
    return 0 in ranks and len(ranks) >= least


def losses(rounds: Sequence[Sequence[str]], results: Iterable[NodeResult]) -> str | None:
    """Return which nodes an attempt has gone on without, in words; None where all are there.

    `rounds` are the names of the nodes that trained together, each time they had to find each
    other again.
    """
    last = set(rounds[-1]) if rounds else set()
    gone = dict.fromkeys(name for names in rounds for name in names if name not in last)
    gone |= dict.fromkeys(result.node for result in results if result.exit_code)
    return f"without {', '.join(gone)}" if gone else None
