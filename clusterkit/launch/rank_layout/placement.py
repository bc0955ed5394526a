"""Where each rank sits: on which node, in which slot, near to whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import prod

from clusterkit.core.errors import UserError
from clusterkit.core.model import NodeOrder
from clusterkit.launch.rank_layout.fabric import Fabric
from clusterkit.launch.rank_layout.parallelism import Mesh, Parallelism

_NEAREST_FIRST = ("tp", "ep", "cp", "pp", "dp", "edp")
"""Who gains most from being near. Tensor-parallel ranks wait for each other in every layer, stages
of a pipeline at every micro batch, data-parallel ones once per step, and behind computation (the
order of Llama 3, arXiv:2407.21783, 3.3.2)."""


class Reach(StrEnum):
    """What a group of ranks has in common; the nearest first."""

    ISLAND = "island"
    NODE = "node"
    SWITCH = "switch"
    NETWORK = "network"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Ranks on nodes: rank r sits on node r // gpus_per_node, in slot r % gpus_per_node."""

    parallelism: Parallelism
    gpus_per_node: int
    hosts: tuple[str, ...]
    """In rank order."""
    islands: Islands
    rack: tuple[int, ...]
    """The island of each node, where one goes over nodes; else the number of the node."""
    switches: tuple[str | None, ...] | None
    """The switch of each node, None where the topology does not know it; None without topology."""
    measured: bool = False
    """Whether these are groups of nodes that were measured to be near, instead of switches."""

    @property
    def nodes(self) -> int:
        """Machines."""
        return len(self.hosts)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Dimensions of more than one rank, in order; `edp` beside `ep`."""
        of = self.parallelism
        names = [name for name in of.order if getattr(of, name) > 1]
        return (*names, *(("edp",) if of.ep > 1 and of.edp > 1 else ()))

    def node(self, rank: int) -> int:
        """Return the number of the node of a rank."""
        return rank // self.gpus_per_node

    def slot(self, rank: int) -> int:
        """Return the slot of a rank in its node."""
        return rank % self.gpus_per_node

    def island(self, rank: int) -> tuple[int, int]:
        """Return the NVLink island of a rank."""
        return self.rack[self.node(rank)], self.islands.of_slot[self.slot(rank)]

    def reach(self, ranks: Sequence[int]) -> Reach:
        """Return what some ranks have in common."""
        if len({self.island(rank) for rank in ranks}) == 1:
            return Reach.ISLAND
        nodes = {self.node(rank) for rank in ranks}
        if len(nodes) == 1:
            return Reach.NODE
        switches = {self.switches[node] for node in nodes} if self.switches else {None}
        return Reach.SWITCH if len(switches) == 1 and None not in switches else Reach.NETWORK

    def groups(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Return the groups of one dimension."""
        return self.parallelism.mesh(name).groups(name)

    def neighbours(self) -> Iterator[tuple[int, int]]:
        """Yield the pairs of ranks that hand activations from one pipeline stage to the next."""
        for group in self.groups("pp"):
            yield from pairwise(group)


def place(
    parallelism: Parallelism,
    *,
    hosts: tuple[str, ...],
    gpus_per_node: int,
    islands: Islands,
    fabric: Fabric | None = None,
    keep_order: bool = False,
) -> Layout:
    """Return the layout of ranks on `hosts`, which a fabric puts into a better order.

    Without a fabric, or with `keep_order`, the hosts keep theirs.
    """
    if fabric is not None and not keep_order:
        hosts = near_first(node_order(parallelism, len(hosts), gpus_per_node, fabric), hosts)
    rack: Mapping[str, int] = {host: number for number, host in enumerate(hosts)}
    if islands.nodes > 1:
        rack = racks(hosts, fabric, islands.nodes)
    of = fabric.switch_of if fabric else {}
    return Layout(
        parallelism=parallelism,
        gpus_per_node=gpus_per_node,
        hosts=hosts,
        islands=islands,
        rack=tuple(rack[host] for host in hosts),
        switches=tuple(of.get(host) for host in hosts) if fabric else None,
        measured=fabric is not None and fabric.measured,
    )


def node_order(
    parallelism: Parallelism, nodes: int, gpus_per_node: int, fabric: Fabric
) -> NodeOrder:
    """Return how `nodes` nodes, whichever they are, keep together whom it helps most.

    The places of nodes are a grid too, and nodes of the same switch fill it along its nearest
    dimensions first. Where nodes cut dimensions unevenly, those of a switch just follow each other.
    """
    switches = tuple(leaf.nodes for leaf in fabric.leaves)
    many_experts = parallelism.ep > parallelism.cp
    grid = node_grid(parallelism.experts if many_experts else parallelism.dense, gpus_per_node)
    if grid is None:
        return NodeOrder(switches=switches, together=1, places=tuple(range(nodes)))
    digits = sorted(
        zip(grid.names, grid.sizes, grid.strides, strict=True),
        key=lambda digit: _NEAREST_FIRST.index(digit[0]),
    )
    together = prod(size for name, size, _ in digits if name not in {"dp", "edp"})
    places = []
    for number in range(nodes):
        rest, position = number, 0
        for _, size, stride in digits:
            rest, digit = divmod(rest, size)
            position += digit * stride
        places.append(position)
    return NodeOrder(switches=switches, together=together, places=tuple(places))


def near_first(order: NodeOrder, hosts: Sequence[str]) -> tuple[str, ...]:
    """Return `hosts`, as many as `order` has places, in rank order.

    templates/scripts/sbatch/order.sh does the same where a Slurm job learns its nodes.
    """
    whole: list[str] = []
    rest: list[str] = []
    for switch in order.switches:
        behind = set(switch)
        here = [host for host in hosts if host in behind]
        full = len(here) // order.together * order.together
        whole += here[:full]
        rest += here[full:]
    known = {*whole, *rest}
    taken = (*whole, *rest, *(host for host in hosts if host not in known))
    placed = dict(zip(order.places, taken, strict=True))
    return tuple(placed[rank] for rank in range(len(taken)))


def node_grid(mesh: Mesh, gpus_per_node: int) -> Mesh | None:
    """Return the part of a mesh that goes over nodes; None where nodes cut it unevenly."""
    inside = gpus_per_node
    outside: list[tuple[str, int]] = []
    for name, size in zip(mesh.names, mesh.sizes, strict=True):
        if inside % size == 0:
            inside //= size
        elif size % inside == 0:
            outside.append((name, size // inside))
            inside = 1
        else:
            return None
    names, sizes = tuple(n for n, _ in outside), tuple(s for _, s in outside)
    return Mesh(names=names, sizes=sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Islands:
    """The NVLink islands of a node, or the nodes of an island."""

    of_slot: tuple[int, ...]
    """The island of each slot of a node."""
    nodes: int = 1
    """How many nodes an island goes over (GB200 NVL72: 18 of 4 GPUs)."""

    @property
    def gpus(self) -> int:
        """GPUs of the smallest island."""
        return min(map(self.of_slot.count, self.of_slot)) * self.nodes

    @property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """The slots of each island of a node, by their first."""
        found: dict[int, list[int]] = {}
        for slot, island in enumerate(self.of_slot):
            found.setdefault(island, []).append(slot)
        return tuple(tuple(part) for part in found.values())

    @property
    def consecutive(self) -> bool:
        """Tell whether the slots of each island follow each other."""
        return all(part == tuple(range(part[0], part[-1] + 1)) for part in self.parts)


def even_islands(gpus: int, gpus_per_node: int) -> Islands:
    """Return islands of `gpus` GPUs each, in consecutive slots.

    Raises:
        UserError: nodes do not divide into such islands, nor islands into such nodes.
    """
    if gpus < 1 or (gpus_per_node % gpus and gpus % gpus_per_node):
        works = [str(n) for n in range(1, gpus_per_node + 1) if gpus_per_node % n == 0]
        raise UserError(
            f"--island {gpus} does not divide nodes of {gpus_per_node} GPUs",
            hint=f"--island {', '.join(works)}, or a multiple of {gpus_per_node} where NVLink "
            "joins nodes",
        )
    slots = tuple(slot // gpus for slot in range(gpus_per_node))
    return Islands(of_slot=slots, nodes=max(1, gpus // gpus_per_node))


def islands_of_groups(
    groups: Sequence[Sequence[int]], gpus_per_node: int, *, gpus: int, source: str
) -> Islands:
    """Return the islands of a node with `gpus` GPUs, of which those in `groups` are joined.

    Raises:
        UserError: the node has fewer GPUs than a job is to use.
    """
    if gpus < gpus_per_node:
        raise UserError(
            f"{source} shows {gpus} GPUs, fewer than the {gpus_per_node} of a node",
            hint=f"--gpus-per-node {gpus}",
        )
    of_gpu = {gpu: number for number, group in enumerate(groups) for gpu in group}
    alone = len(groups)
    return Islands(of_slot=tuple(of_gpu.get(slot, alone + slot) for slot in range(gpus_per_node)))


def racks(hosts: Sequence[str], fabric: Fabric | None, nodes: int) -> Mapping[str, int]:
    """Return which island each host is in, where an island goes over `nodes` nodes.

    Without a fabric, consecutive hosts; else hosts of one switch or block, which is what Slurm's
    topology/block is for.
    """
    if fabric is None:
        return {host: number // nodes for number, host in enumerate(hosts)}
    found: dict[str, int] = {}
    names = set(hosts)
    for leaf in fabric.leaves:
        base = len(set(found.values()))
        used = [host for host in leaf.nodes if host in names]
        found |= {host: base + number // nodes for number, host in enumerate(used)}
    unknown = [host for host in hosts if host not in found]
    base = len(set(found.values()))
    return found | {host: base + number for number, host in enumerate(unknown)}


Values = tuple[int, ...]


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


def patterns(layout: Layout) -> tuple[Pattern, ...]:
    """Return the patterns of a layout, by their first node."""
    names = tuple(name for name in layout.dimensions if name != "edp")
    found: dict[tuple[tuple[str, Values], ...], dict[int, Mapping[str, Values]]] = {}
    for number in range(layout.nodes):
        ranks = range(number * layout.gpus_per_node, (number + 1) * layout.gpus_per_node)
        values = {name: _coordinates(layout, name, ranks) for name in names}
        above = {name: tuple(v - min(all_) for v in all_) for name, all_ in values.items()}
        within = tuple((name, rise) for name, rise in above.items() if any(rise))
        found.setdefault(within, {})[number] = values
    return tuple(_pattern(dict(within), nodes) for within, nodes in found.items())


def _coordinates(layout: Layout, name: str, ranks: Sequence[int]) -> Values:
    mesh = layout.parallelism.mesh(name)
    return tuple(mesh.coordinate(name, rank) for rank in ranks)


def _pattern(slots: Mapping[str, Values], nodes: Mapping[int, Mapping[str, Values]]) -> Pattern:
    names = next(iter(nodes.values()))
    columns = [n for n in names if n not in slots or len({min(v[n]) for v in nodes.values()}) > 1]
    rows: dict[int, list[int]] = {}
    for number, values in nodes.items():
        # Folded along all but the slowest: with one dimension, along that one too.
        key = min(values[columns[-1]]) if len(columns) > 1 else 0
        rows.setdefault(key, []).append(number)
    found = []
    for row in rows.values():
        all_values = {name: {v for number in row for v in nodes[number][name]} for name in columns}
        coordinates = {name: tuple(sorted(values)) for name, values in all_values.items()}
        found.append(NodeRow(nodes=tuple(row), coordinates=coordinates))
    return Pattern(slots=slots, rows=tuple(found))
