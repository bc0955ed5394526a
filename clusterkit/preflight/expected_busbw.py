"""Bus bandwidth of large all-reduces, as others have published it: `expected_busbw.tsv`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core.data import read_table

LEAST_BYTES = 1 << 30
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


def _read() -> Iterator[tuple[Published, bool]]:
    for row in read_table(Path(__file__).with_suffix(".tsv")):
        yield (
            Published(
                gpu=re.compile(row["gpu"]),
                nodes=int(row["nodes"]),
                per_node=int(row["per_node"]),
                network=row["network"] or None,
                gbs=float(row["gbs"]),
                system=row["system"],
                source=row["source"],
            ),
            row["usual"] == "yes",
        )


_ALL = tuple(_read())
ONE_NODE = tuple(one for one, usual in _ALL if usual and one.nodes == 1)
"""NVIDIA's own systems."""
TWO_NODES = tuple(one for one, usual in _ALL if usual and one.nodes == 2)
"""With a network adapter for each GPU, as NVIDIA sells them."""


def published_for(
    device: str, *, nodes: int, per_node: int, network: str | None
) -> Published | None:
    """Return what is published for as many nodes of these GPUs; None where nothing is."""
    for one, _ in _ALL:
        there = (one.nodes, one.per_node) == (nodes, per_node) and one.network in {None, network}
        if there and one.gpu.search(device):
            return one
    return None
