"""Bus bandwidth of large all-reduces, as others have published it: `expected_busbw.tsv`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from clusterkit.core.data import read_table

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


def _published(row: Mapping[str, str]) -> Published:
    return Published(
        gpu=re.compile(row["gpu"]),
        nodes=int(row["nodes"]),
        per_node=int(row["per_node"]),
        network=row["network"] or None,
        gbs=float(row["gbs"]),
        system=row["system"],
        source=row["source"],
    )


_ROWS = tuple(read_table(__file__, "expected_busbw.tsv"))
_ALL = tuple(map(_published, _ROWS))
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
