"""Nodes whose ranks sit alike, folded into one pattern: what a picture of a layout shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterkit.launch.rank_layout.placement import Layout

Values = tuple[int, ...]
Within = tuple[tuple[str, Values], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """Nodes of one pattern that also share the slowest of the coordinates that tell them apart."""

    nodes: tuple[int, ...]
    """Their numbers, in rank order."""
    coordinates: Mapping[str, Values]
    """All values on these nodes, of each dimension that is one on a node or starts elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """How coordinates change from slot to slot, the same on each of its nodes."""

    slots: Mapping[str, Values]
    """By how much each slot is above the lowest of its node, for what changes within a node."""
    rows: tuple[NodeRow, ...]

    @property
    def moving(self) -> frozenset[str]:
        """Dimensions that change within a node and start elsewhere on another one."""
        return frozenset(self.slots) & frozenset(self.rows[0].coordinates)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    number: int
    lowest: Mapping[str, int]


def patterns(layout: Layout) -> tuple[Pattern, ...]:
    """Return the patterns of a layout, by their first node."""
    names = tuple(name for name in layout.dimensions if name != "edp")
    found: dict[Within, list[_Node]] = {}
    for number in range(layout.nodes):
        within, node = _of_node(layout, number, names)
        found.setdefault(within, []).append(node)
    return tuple(_pattern(dict(within), nodes) for within, nodes in found.items())


def _of_node(layout: Layout, number: int, names: tuple[str, ...]) -> tuple[Within, _Node]:
    within: list[tuple[str, Values]] = []
    lowest: dict[str, int] = {}
    first = number * layout.gpus_per_node
    for name in names:
        mesh = layout.parallelism.mesh(name)
        ranks = range(first, first + layout.gpus_per_node)
        values = tuple(mesh.coordinate(name, rank) for rank in ranks)
        lowest[name] = min(values)
        above = tuple(value - lowest[name] for value in values)
        if any(above):
            within.append((name, above))
    return tuple(within), _Node(number=number, lowest=lowest)


def _pattern(slots: Mapping[str, Values], nodes: list[_Node]) -> Pattern:
    columns = [
        name
        for name in nodes[0].lowest
        if name not in slots or len({node.lowest[name] for node in nodes}) > 1
    ]
    rows: dict[int, list[_Node]] = {}
    for node in nodes:
        # Folded along all but the slowest: with one dimension, along that one too.
        key = node.lowest[columns[-1]] if len(columns) > 1 else 0
        rows.setdefault(key, []).append(node)
    return Pattern(slots=slots, rows=tuple(_row(slots, row, columns) for row in rows.values()))


def _row(slots: Mapping[str, Values], nodes: list[_Node], columns: list[str]) -> NodeRow:
    return NodeRow(
        nodes=tuple(node.number for node in nodes),
        coordinates={
            name: tuple(
                sorted({n.lowest[name] + above for n in nodes for above in slots.get(name, (0,))})
            )
            for name in columns
        },
    )
