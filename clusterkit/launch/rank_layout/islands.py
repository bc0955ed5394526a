"""Which GPUs reach each other over NVLink: parts of a node, a node, or a rack of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterkit.core.errors import UserError
from clusterkit.launch.rank_layout.fabric import Fabric


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
    wanted = set(hosts)
    for leaf in fabric.leaves:
        base = len(set(found.values()))
        used = [host for host in leaf.nodes if host in wanted]
        found |= {host: base + number // nodes for number, host in enumerate(used)}
    unknown = [host for host in hosts if host not in found]
    base = len(set(found.values()))
    return found | {host: base + number for number, host in enumerate(unknown)}
