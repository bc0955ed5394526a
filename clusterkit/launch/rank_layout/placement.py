"""Where each rank sits: on which node, in which slot, near to whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import prod

from clusterkit.core.model import NodeOrder
from clusterkit.launch.rank_layout.fabric import Fabric
from clusterkit.launch.rank_layout.islands import Islands, racks
from clusterkit.launch.rank_layout.mesh import Mesh
from clusterkit.launch.rank_layout.parallelism import Parallelism

_NEAREST_FIRST = ("tp", "ep", "cp", "pp", "dp", "edp")
"""Who gains most from being near. Tensor-parallel ranks wait for each other in every layer, stages
of a pipeline at every micro batch, data-parallel ones once a step, and behind computation (the
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

    templates/sbatch/order.sh does the same where a Slurm job learns its nodes.
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
