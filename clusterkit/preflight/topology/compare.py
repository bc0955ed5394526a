"""Topologies of many nodes: what most have, and who differs from that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterkit.preflight.topology.matrix import Topology, nvlinks

Shape = tuple[str, ...]
"""Names of the columns."""
Typical = Mapping[tuple[int, int], str]
"""Two indices of columns to the link that most nodes have there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A pair of devices whose link is not what most nodes have."""

    a: str
    b: str
    has: str
    most: str

    @property
    def nvlink(self) -> bool:
        """Whether NVLink comes into it; else it is about PCIe."""
        return nvlinks(self.has) > 0 or nvlinks(self.most) > 0


def common_shape(topologies: Sequence[Topology]) -> Shape | None:
    """Return the columns that more than half of the nodes have; None where there are none."""
    ranked = Counter(topology.names for topology in topologies).most_common(1)
    return ranked[0][0] if ranked and ranked[0][1] * 2 > len(topologies) else None


def typical(topologies: Sequence[Topology]) -> Typical:
    """Return, for every pair of columns, the link that more than half of the nodes have.

    All have the same columns. Pairs without such a link are left out.
    """
    counts = Counter(topology.cells for topology in topologies)
    total = sum(counts.values())
    size = len(topologies[0].names) if topologies else 0
    found: dict[tuple[int, int], str] = {}
    for a in range(size):
        for b in range(a + 1, size):
            votes: Counter[str] = Counter()
            for cells, n in counts.items():
                votes[cells[a][b]] += n
            link, n = votes.most_common(1)[0]
            if n * 2 > total:
                found[a, b] = link
    return found


def differences(topology: Topology, most: Typical) -> tuple[Difference, ...]:
    """Return the pairs whose link differs from that of most nodes with the same columns."""
    names = topology.names
    return tuple(
        Difference(a=names[a], b=names[b], has=topology.cells[a][b], most=link)
        for (a, b), link in most.items()
        if topology.cells[a][b] != link
    )
