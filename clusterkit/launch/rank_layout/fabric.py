"""The switches between nodes, as `scontrol show topology` prints them, or what stands for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

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
        words = {key.lower(): value for key, value in _WORD.findall(line.partition("#")[0])}
        name = next((words[key] for key in _NAMES if words.get(key)), None)
        if name is None:
            continue
        where = f"{source}:{number}"
        below = expand(words.get("switches", ""), source=where)
        parents |= {child: name for child in below if child not in parents and child != name}
        if not below:
            nodes[name] = expand(words.get("nodes", ""), source=where)
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
