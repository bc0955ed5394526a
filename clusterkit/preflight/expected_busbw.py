"""Bus bandwidth of large all-reduces, as others have published it: `expected_busbw.tsv`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterkit.core.data import read_table
from clusterkit.core.records import row_of

MIN_BYTES = 1 << 30
"""Smaller messages are slower on the same links, and say nothing beside these figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One system, and what it reaches."""

    gpu: re.Pattern[str]
    """Found in what NVIDIA's or AMD's driver calls the GPU."""
    nodes: int
    per_node: int
    network: str | None = None
    """What joins the nodes, as `estimate` calls it; None where it does not matter."""
    gbs: float
    """GB/s of bus bandwidth, an all-reduce."""
    system: str
    source: str


_ROWS = tuple(read_table(__file__, "expected_busbw.tsv"))
_ALL = tuple(row_of(Published, row) for row in _ROWS)
_USUAL = tuple(one for one, row in zip(_ALL, _ROWS, strict=True) if row["usual"] == "yes")
ONE_NODE = tuple(one for one in _USUAL if one.nodes == 1)
"""NVIDIA's own systems."""
TWO_NODES = tuple(one for one in _USUAL if one.nodes == 2)
"""With a network adapter for each GPU, as NVIDIA sells them."""


def published_for(
    device: str, *, nodes: int, per_node: int, network: str | None
) -> Published | None:
    """Return what is published for as many nodes of these GPUs; None where nothing is."""
    size = (nodes, per_node)
    known = (one for one in _ALL if (one.nodes, one.per_node) == size and one.gpu.search(device))
    return next((one for one in known if one.network in {None, network}), None)
