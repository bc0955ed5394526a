"""Links within a node and networks between nodes: how long a collective takes over them.

A collective takes its latency, and the bytes that a rank sends over the bus bandwidth, which grows
with the size of the message. Latencies and hops are those of NCCL's own tuner (NVIDIA/nccl
src/graph/tuning.cc @5067397c, protocol Simple); the growth with size follows all-reduces measured
on one and on four nodes of 8 B200 (stas00/ml-engineering network/README.md): 16 MiB reach a third
of what 16 GiB do on one node, and a sixth on four.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from clusterkit.core.data import read_table
from clusterkit.core.errors import Problem, UserError, choices_hint
from clusterkit.core.records import row_of
from clusterkit.estimate import FACTS
from clusterkit.estimate.machines.gpus import Gpu, own_figures

_PCIE_BUSBW_GBS: Mapping[int, float] = {3: 12.0, 4: 24.0, 5: 48.0, 6: 96.0}
"""An x16 slot in one direction, as NCCL counts it (topo.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What joins the nodes."""

    name: str
    gbit: float
    """Line rate of one NIC, Gbit/s."""
    nics: int | None
    """NICs of a node; None for one beside each GPU."""
    of_line_rate: float = FACTS["network_of_line_rate"]
    """What NCCL gets of it: less where TCP carries it."""
    hop_s: float = FACTS["network_hop_s"]

    def node_gbs(self, gpus_per_node: int) -> float:
        """Return what all NICs of a node move in one direction together, GB/s."""
        return self.gbit / 8 * (self.nics or gpus_per_node) * self.of_line_rate


_ROWS = tuple(read_table(__file__, "networks.tsv"))
NETWORKS: Mapping[str, Network] = {row["name"]: row_of(Network, row) for row in _ROWS}
_SHORT = {word: row["name"] for row in _ROWS for word in row["aliases"].split() if word != "-"}
_SENSIBLE = {"gbit": (0.1, 100_000), "nics": (1, 256)}
OWN_NETWORK = "NAME:gbit=400,nics=8 gives your own (Gbit/s of one NIC, NICs of a node)"


def network_of(gpu: Gpu, name: str | None = None) -> Network:
    """Return the network called `name`, or the one that nodes with such GPUs usually have."""
    if name is not None:
        return interconnect_named(name)
    in_systems = gpu.nvlink_busbw_gbs is not None or gpu.mamf_tflops is not None
    if in_systems and gpu.architecture.network is not None:
        return NETWORKS[gpu.architecture.network]
    return NETWORKS["ethernet-100" if gpu.memory_gb >= FACTS["server_card_gb"] else "ethernet-25"]


def interconnect_named(text: str) -> Network:
    """Return the network of this name, or with these figures.

    `8x` before a name or `x8` after it says how many NICs a node has: `4xroce-100`, `ndr-x8`.

    Raises:
        UserError: no network is called that, or a figure is absurd.
    """
    name, colon, figures = text.strip().lower().partition(":")
    if colon:
        return _own(name.strip() or "custom", figures)
    bare, nics = name, None
    counted = re.fullmatch(r"(?:(\d{1,6})\s*x\s*+)?+(.*?)(?:[-_ ]?x\s*+(\d{1,6}))?", name)
    if counted and (counted[1] or counted[3]):
        bare, nics = counted[2], int(counted[1] or counted[3])
    network = _find(bare)
    if network is None or nics == 0:
        hint = f"{choices_hint(bare, (*NETWORKS, *_SHORT))}\n      {OWN_NETWORK}"
        raise UserError(f"no network between nodes is called {text.strip()!r}", hint=hint)
    if nics is None:
        return network
    return replace(network, name=f"{nics}x{network.name}", nics=nics)


def _find(name: str) -> Network | None:
    key = re.sub(r"[ _]", "-", name.strip())
    key = re.sub(r"^(ib|infiniband)-", "", key)
    key = re.sub(r"^(\d+)-?gbe$", r"ethernet-\1", key)
    key = re.sub(r"-?g(b(it|e|ps)?)?$", "", key)
    key = re.sub(r"^(roce|ethernet|eth)-?(?=\d)", lambda found: f"{found[1]}-", key)
    key = re.sub(r"^eth-", "ethernet-", key)
    return NETWORKS.get(key) or NETWORKS.get(_SHORT.get(key, f"infiniband-{key}"))


def _own(name: str, text: str) -> Network:
    given, problems = own_figures(text, _SENSIBLE, of="a network", hint=OWN_NETWORK)
    if "gbit" not in given and not problems:
        problems.append(Problem(message=f"the network {name!r} needs gbit=", hint=OWN_NETWORK))
    if problems:
        raise UserError(problems=problems)
    nics = max(1, round(given["nics"])) if "nics" in given else None
    return Network(name=name, gbit=given["gbit"], nics=nics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that talk to each other, and where they are."""

    ranks: int
    per_node: int
    """How many of them share a node; the others of the node form groups of their own."""

    @property
    def nodes(self) -> int:
        """Machines that they are spread over."""
        return -(-self.ranks // self.per_node)


def _ramp(seconds: float, group: Group) -> float:
    """Return the part of its bandwidth that a message reaches which would last `seconds` in full.

    Its rate grows with the root of its size, which is how the measured all-reduces grow.
    """
    fill = FACTS["fill_within_s" if group.nodes == 1 else "fill_between_s"]
    return 1 / (1 + math.sqrt(fill / seconds))


def group_of(ranks: int, stride: int, gpus_per_node: int) -> Group:
    """Return the group of `ranks` ranks whose numbers are `stride` apart."""
    return Group(ranks=ranks, per_node=max(1, min(ranks, gpus_per_node // stride)))


def fast_domain(gpu: Gpu, gpus_per_node: int, gpus: int) -> int:
    """Return how many of `gpus` share the fast links: those of a node, or of a rack with NVLink."""
    return max(gpus_per_node, min(gpu.linked or 0, gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links of some nodes: what a collective of a group takes over them."""

    gpu: Gpu
    gpus_per_node: int
    network: Network
    intra_scale: float = 1.0
    """Measured over estimated bandwidth within a node."""
    inter_scale: float = 1.0

    def busbw(self, group: Group) -> float:
        """Return the bus bandwidth that large messages of this group reach, bytes/s.

        Between nodes, the groups of a node share its NICs: a group has its part of them.
        """
        within = self._within_gbs(group) * self.intra_scale
        if group.nodes == 1:
            return within * 1e9
        share = self.network.node_gbs(self.gpus_per_node) * group.per_node / self.gpus_per_node
        between = share * self.inter_scale
        return min(within, between) * 1e9 if group.per_node > 1 else between * 1e9

    def all_gather_s(self, size: float, group: Group) -> float:
        """Return the seconds of an all-gather or a reduce-scatter of `size` bytes in all."""
        return self._collective_s(size, group, rounds=1)

    def all_reduce_s(self, size: float, group: Group) -> float:
        """Return the seconds of an all-reduce of `size` bytes."""
        return self._collective_s(size, group, rounds=2)

    def all_to_all_s(self, size: float, group: Group) -> float:
        """Return the seconds of an all-to-all: each rank has `size` bytes, a part for each rank.

        Its own part it keeps, so that it sends (n-1)/n of them, as nccl-tests count
        (doc/PERFORMANCE.md, AlltoAll).
        """
        if group.ranks == 1 or size <= 0:
            return 0.0
        away = group.ranks - group.per_node
        share = self.network.node_gbs(self.gpus_per_node) / self.gpus_per_node * 1e9
        between = size * away / group.ranks / (share * self.inter_scale)
        sent = size * (group.ranks - 1) / group.ranks
        within = sent / (self._within_gbs(group) * self.intra_scale * 1e9)
        full = max(between, within)
        return full / _ramp(full, group) + self._latency_s(group, rounds=1)

    def send_s(self, size: float, *, between_nodes: bool) -> float:
        """Return the seconds of one message from a rank to another."""
        pair = Group(ranks=2, per_node=1 if between_nodes else 2)
        hop = self.network.hop_s if between_nodes else self._hop_s(pair)
        return hop + size / self.busbw(pair)

    def _collective_s(self, size: float, group: Group, *, rounds: int) -> float:
        if group.ranks == 1 or size <= 0:
            return 0.0
        sent = rounds * size * (group.ranks - 1) / group.ranks
        bandwidth, latency = self.busbw(group), self._latency_s(group, rounds=rounds)
        return latency + sent / (bandwidth * _ramp(size / bandwidth, group))

    def _latency_s(self, group: Group, *, rounds: int) -> float:
        """Return the latency of a ring, or of a tree where an all-reduce has a shorter one."""
        hop, net = self._hop_s(group), self.network.hop_s
        between = rounds * (group.nodes - 1)
        ring = between * net + (rounds * (group.ranks - 1) - between) * hop
        if rounds > 1:
            tree = 2 * ((group.per_node - 1) * hop + math.ceil(math.log2(group.nodes)) * net)
            ring = min(ring, tree)
        return FACTS["nccl_base_s"] + ring

    def _linked(self, group: Group) -> bool:
        most = self.gpu.linked or self.gpus_per_node
        return self.gpu.nvlink_busbw_gbs is not None and group.per_node <= most

    def _hop_s(self, group: Group) -> float:
        return FACTS["nvlink_hop_s" if self._linked(group) else "pcie_hop_s"]

    def _within_gbs(self, group: Group) -> float:
        if self.gpu.nvlink_busbw_gbs is not None and self._linked(group):
            return self.gpu.nvlink_busbw_gbs
        return pcie_gbs(self.gpu)


def pcie_gbs(gpu: Gpu) -> float:
    """Return the bandwidth of the GPU's slot in one direction, GB/s."""
    return _PCIE_BUSBW_GBS.get(gpu.pcie_gen, _PCIE_BUSBW_GBS[3])
