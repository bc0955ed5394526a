"""The switches between nodes, as `scontrol show topology` prints them, or what stands for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from clusterkit.core.errors import UserError
from clusterkit.core.hosts.hostlist import expand

_WORD = re.compile(r"(?<!\w)(\w+)=(\S*)")
_NAMES = ("switchname", "blockname")
_HOW = "give what `scontrol show topology` prints on the cluster, or its topology.conf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Nodes with nothing but one switch (or one block) between them."""

    path: tuple[str, ...]
    """Switches from the root of the tree down to this one."""
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The switches of a cluster; those that hang on the same switch stand together."""

    leaves: tuple[Leaf, ...]
    measured: bool = False
    """Whether these are no switches, but groups of nodes that were measured to be near."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, those of a switch together."""
        return tuple(node for leaf in self.leaves for node in leaf.nodes)

    @property
    def switch_of(self) -> Mapping[str, str]:
        """The switch of each node."""
        return {node: leaf.path[-1] for leaf in self.leaves for node in leaf.nodes}


def parse_fabric(text: str, *, source: str = "topology") -> Fabric:
    """Return the switches or blocks of a `scontrol show topology` or a topology.conf.

    Lines of topology/tree (`SwitchName=`, `Level=`, `Nodes=`, `Switches=`) and topology/block
    (`BlockName=`, `Nodes=`); a line of Slurm lists the nodes of a switch also where other switches
    are in between. Source: topology.conf(5), and the two plugins' `_print_topo_record`.

    Raises:
        UserError: there is no switch in it, or a hostlist that cannot be read.
    """
    nodes: dict[str, tuple[str, ...]] = {}
    parents: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        fields = {key.lower(): value for key, value in _WORD.findall(line.partition("#")[0])}
        name = next((fields[key] for key in _NAMES if fields.get(key)), None)
        if name is None:
            continue
        where = f"{source}:{number}"
        below = expand(fields.get("switches", ""), source=where)
        parents |= {child: name for child in below if child not in parents and child != name}
        if not below:
            nodes[name] = expand(fields.get("nodes", ""), source=where)
    if not any(nodes.values()):
        raise UserError(f"{source} names no switch with nodes", hint=_HOW)
    return Fabric(leaves=_in_order(nodes, parents))


def _in_order(nodes: Mapping[str, tuple[str, ...]], parents: Mapping[str, str]) -> tuple[Leaf, ...]:
    seen: set[str] = set()
    leaves = []
    for name, hosts in nodes.items():
        new = tuple(dict.fromkeys(host for host in hosts if host not in seen))
        seen.update(new)
        if new:
            leaves.append(Leaf(path=_path(name, parents), nodes=new))
    # Where a switch is met first, all that hangs on it follows.
    first: dict[tuple[str, ...], int] = {}
    for number, leaf in enumerate(leaves):
        for depth in range(len(leaf.path)):
            first.setdefault(leaf.path[: depth + 1], number)
    leaves.sort(key=lambda leaf: [first[leaf.path[: d + 1]] for d in range(len(leaf.path))])
    return tuple(leaves)


def _path(name: str, parents: Mapping[str, str]) -> tuple[str, ...]:
    path = [name]
    while path[-1] in parents and parents[path[-1]] not in path:
        path.append(parents[path[-1]])
    return tuple(reversed(path))


Pair = tuple[str, str]
"""Two nodes, from and to."""

_APART = 1.5
"""Times between near and far. Ours: single streams between equal nodes differ by less than a
third (`preflight`, NET003), and so a half more is no noise."""
_APART_US = 20.0
"""Less between two round trips is the noise of schedulers and interrupts."""
_AGREE = 0.9
"""Share of the pairs that have to agree with a division of the nodes; a few are bad cables."""


def measured_fabric(
    nodes: Sequence[str], *, latencies_us: Mapping[Pair, float], rates: Mapping[Pair, float]
) -> Fabric:
    """Return `nodes` in groups that are nearer to each other than to the rest.

    One group where all are about as near; nodes of which nothing was measured are in none. The
    order of nodes and groups is that of `nodes`.
    """
    latency = _worst(latencies_us)
    slowness = _worst({pair: 1 / rate for pair, rate in rates.items() if rate > 0})
    near = _division(nodes, latency, apart=_APART_US)
    fast = _division(nodes, slowness, apart=0.0)
    found: dict[int, dict[int, list[str]]] = {}
    for node in nodes:
        if node in near or node in fast:
            within = found.setdefault(near.get(node, -1), {})
            within.setdefault(fast.get(node, -1), []).append(node)
    groups = [group for within in found.values() for group in within.values()]
    return Fabric(
        leaves=tuple(
            Leaf(path=("measured", f"group-{number}"), nodes=tuple(group))
            for number, group in enumerate(groups)
        ),
        measured=True,
    )


def _worst(figures: Mapping[Pair, float]) -> Mapping[Pair, float]:
    """Return one figure for both directions, the higher; the names in order."""
    found: dict[Pair, float] = {}
    for (one, other), figure in figures.items():
        pair = (one, other) if one < other else (other, one)
        found[pair] = max(figure, found.get(pair, figure))
    return found


def _division(
    nodes: Sequence[str], costs: Mapping[Pair, float], *, apart: float
) -> Mapping[str, int]:
    """Return the group of each node that was measured, by the widest gap that divides them all."""
    known = dict.fromkeys(name for pair in costs for name in pair)
    there = [node for node in nodes if node in known]
    for limit in _gaps(costs.values(), apart):
        near: dict[str, dict[str, bool]] = {node: {} for node in there}
        for (one, other), cost in costs.items():
            near[one][other] = near[other][one] = cost < limit
        groups = list(_groups(near))
        if 1 < len(groups) < len(there):
            of = {node: number for number, group in enumerate(groups) for node in group}
            agree = [(of[a] == of[b]) == (cost < limit) for (a, b), cost in costs.items()]
            if sum(agree) >= _AGREE * len(agree):
                return of
    return dict.fromkeys(there, 0)


def _gaps(figures: Iterable[float], apart: float) -> Iterator[float]:
    """Yield a figure in each gap between figures, the widest first."""
    ordered = sorted(figures)
    wide = [
        (high / low if low > 0 else inf, (low + high) / 2)
        for low, high in pairwise(ordered)
        if high >= _APART * low and high - low > apart
    ]
    return (limit for _, limit in sorted(wide, reverse=True))


def _groups(near: Mapping[str, Mapping[str, bool]]) -> Iterator[Sequence[str]]:
    """Yield groups: a node joins one where it is near to most of those it was measured with.

    Not all pairs of many nodes are measured, and some of them badly.
    """
    left = dict.fromkeys(near)
    while left:
        first = next(iter(left))
        del left[first]
        members, group = {first}, [first]
        for member in group:
            for other in near[member]:
                if other not in left:
                    continue
                votes = [is_near for node, is_near in near[other].items() if node in members]
                if 2 * sum(votes) > len(votes):
                    del left[other]
                    members.add(other)
                    group.append(other)
        yield group
