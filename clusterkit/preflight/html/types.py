"""Distinct types of nodes: those whose GPUs and NICs are linked alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import NodeFacts
from clusterkit.preflight.html.drawing import Drawing, draw
from clusterkit.preflight.probes.gpu import nvidia_links
from clusterkit.preflight.topology.analysis import summary, warnings
from clusterkit.preflight.topology.matrix import UNKNOWN, Topology, View, closeness
from clusterkit.transport.probe import Missing

_MOST_DRAWN = 12
"""A cluster has a few types; where there are more, something else is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """Nodes with the same links."""

    nodes: tuple[str, ...]
    summary: str
    warnings: tuple[str, ...]
    names: tuple[str, ...]
    matrix: tuple[tuple[tuple[str, str], ...], ...]
    """Text and class of the style sheet for every cell."""
    drawing: Drawing | None
    """None where it is one of too many."""


def node_types(nodes: Sequence[NodeFacts]) -> tuple[NodeType, ...]:
    """Return the types, the most common first."""
    members: dict[object, list[str]] = {}
    examples: dict[object, Topology] = {}
    for node in nodes:
        topology = node.of(nvidia_links.TOPO)
        if isinstance(topology, Missing) or topology.view is View.P2P:
            continue
        # A job sees its own CPUs only, so the affinity to CPUs is not a part of the type.
        key = (
            topology.gpus,
            topology.nics,
            topology.cells,
            tuple(affinity.numa for affinity in topology.affinity),
        )
        members.setdefault(key, []).append(node.name)
        examples.setdefault(key, topology)
    common = sorted(members, key=lambda key: len(members[key]), reverse=True)
    return tuple(
        _node_type(examples[key], members[key], drawn=place < _MOST_DRAWN)
        for place, key in enumerate(common)
    )


def untyped(nodes: Sequence[NodeFacts]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the reasons why nodes that were asked have no topology, and those nodes.

    Where no node has GPUs, that is not worth a word.
    """
    found: dict[str, list[str]] = {}
    skipped: set[str] = set()
    for node in nodes:
        facts = node.of(nvidia_links.TOPO)
        if isinstance(facts, Missing) and nvidia_links.TOPO.name in node.outputs:
            found.setdefault(facts.reason, []).append(node.name)
            if facts.verdict is Verdict.SKIP:
                skipped.add(facts.reason)
    if sum(map(len, found.values())) == len(nodes) and skipped == set(found):
        return ()
    return tuple((reason, tuple(names)) for reason, names in found.items())


def _node_type(topology: Topology, nodes: Sequence[str], *, drawn: bool) -> NodeType:
    return NodeType(
        nodes=tuple(nodes),
        summary=summary(topology),
        warnings=warnings(topology),
        names=(*topology.gpus, *(nic.device or nic.name for nic in topology.nics)),
        matrix=tuple(tuple((cell, _shade(cell)) for cell in row) for row in topology.cells),
        drawing=draw(topology) if drawn else None,
    )


def _shade(cell: str) -> str:
    return "self" if cell in {"X", UNKNOWN} else f"d{closeness(cell)}"
