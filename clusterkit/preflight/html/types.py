"""Distinct types of nodes: those whose GPUs and NICs are linked alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clusterkit.core.hosts.hostlist import fold
from clusterkit.preflight.checks.base import NodeFacts
from clusterkit.preflight.probes.gpu import nvidia_links
from clusterkit.preflight.topology.analysis import NEAR, islands, pcie_groups, summary, warnings
from clusterkit.preflight.topology.matrix import PCIE_CLASSES, UNKNOWN, Topology, View, closeness
from clusterkit.transport.probe import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What stands together in the picture of a type: a NUMA node, or what is near nothing."""

    title: str
    gpus: tuple[str, ...]
    nics: tuple[tuple[str, str, str], ...]
    """Device of a NIC, the class of its nearest link, and the GPUs that have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """Nodes with the same links."""

    nodes: tuple[str, ...]
    summary: str
    warnings: tuple[str, ...]
    names: tuple[str, ...]
    matrix: tuple[tuple[tuple[str, str], ...], ...]
    """Text and class of the style sheet for every cell."""
    places: tuple[Place, ...]
    joined: tuple[tuple[str, str], ...]
    """What joins GPUs (`nvlink` or `pcie`), and which of them."""


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
    return tuple(_node_type(examples[key], members[key]) for key in common)


def _node_type(topology: Topology, nodes: Sequence[str]) -> NodeType:
    return NodeType(
        nodes=tuple(nodes),
        summary=summary(topology),
        warnings=warnings(topology),
        names=(*topology.gpus, *(nic.device or nic.name for nic in topology.nics)),
        matrix=tuple(tuple((cell, _shade(cell)) for cell in row) for row in topology.cells),
        places=places(topology),
        joined=tuple(_joined(topology)),
    )


def places(topology: Topology) -> tuple[Place, ...]:
    """Return the NUMA nodes in order, each NIC with its nearest GPU; NICs near none come last."""
    numa = [affinity.numa for affinity in topology.affinity]
    nics: dict[str | None, list[tuple[str, str, str]]] = {node: [] for node in numa}
    lost: list[tuple[str, str, str]] = []
    for index, nic in enumerate(topology.nics):
        links = [topology.nic_link(gpu, index) for gpu in range(len(topology.gpus))]
        best = min(links, key=closeness)
        near = fold(gpu for gpu, link in zip(topology.gpus, links, strict=True) if link == best)
        home = lost if best == PCIE_CLASSES[-1] else nics[numa[links.index(best)]]
        home.append((nic.device or nic.name, best, near if closeness(best) <= NEAR else ""))
    found = [
        Place(
            title="NUMA node not known" if node is None else f"NUMA {node}",
            gpus=tuple(g for g, of in zip(topology.gpus, numa, strict=True) if of == node),
            nics=tuple(nics[node]),
        )
        for node in sorted(nics, key=lambda node: (node is None, len(node or ""), node or ""))
    ]
    return (*found, *([Place(title="no GPU near", gpus=(), nics=tuple(lost))] if lost else []))


def _joined(topology: Topology) -> Iterator[tuple[str, str]]:
    """Yield what joins groups of GPUs: NVLink, or a PCIe switch where there is no NVLink."""
    found = islands(topology)
    for island in found:
        pairs = "every pair of" if island.all_to_all else "some pairs of"
        yield "nvlink", f"NVLink {'/'.join(island.links)}: {pairs} {fold(island.gpus)}"
    in_island = {gpu for island in found for gpu in island.gpus}
    for group in pcie_groups(topology):
        if len(group) > 1 and not in_island & set(group):
            yield "pcie", f"PCIe switch: {fold(group)}"


def _shade(cell: str) -> str:
    return "self" if cell in {"X", UNKNOWN} else f"d{closeness(cell)}"
