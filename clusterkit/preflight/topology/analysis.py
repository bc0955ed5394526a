"""What a topology means for a training job, and for the HCAs that NCCL is told to take."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, groupby

from clusterkit.core.hosts.hostlist import fold
from clusterkit.preflight.topology.matrix import Topology, View, closeness, nvlinks

NEAR = closeness("PXB")
"""A NIC at most this far from a GPU shares PCIe switches with it, so that GPUDirect RDMA need not
pass the CPU; NCCL's default for NCCL_NET_GDR_LEVEL is PXB (src/graph/paths.cc)."""

_SWITCHED = 6
"""NVLinks of a GPU behind NVSwitch: V100 6, A100 12, H100 and later 18. With fewer, pairs of one
board have different numbers by design (hybrid cube mesh)."""


_NO_NVLINK = {
    View.LINKS: "no NVLink",
    View.PCIE: "NVLink is not shown (`topo -mp`)",
    None: "no NVLink shown",
}
_SHORT = (7, 15)
"""GPUs of boards for 8 and 16 of which one is missing."""
_GB10 = "0-19"
"""CPU affinity of the GPU of a DGX Spark."""
_GRACE_GPUS = 4
"""In one node."""
_GRACE = re.compile(r"0-71|72-143|144-215|216-287|0-143|0-287")
"""CPU affinity of GPUs on Grace: 72 cores a socket, one thread each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Island:
    """GPUs that reach each other over NVLink, directly or through one another."""

    gpus: tuple[str, ...]
    links: tuple[str, ...]
    """The NVLink classes in it, widest first."""
    all_to_all: bool
    """Whether every pair has a link of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The NICs nearest to a GPU."""

    gpu: str
    link: str
    nics: tuple[str, ...]
    """Devices; names of columns where the devices are not known."""


@lru_cache(maxsize=4096)
def islands(topology: Topology) -> tuple[Island, ...]:
    """Return the groups of at least two GPUs that NVLink joins, in order of their first GPU."""
    found = []
    for group in _groups(topology, limit=0):
        cells = [topology.cells[a][b] for a, b in combinations(group, 2)]
        island = Island(
            gpus=tuple(topology.gpus[index] for index in group),
            links=tuple(sorted(filter(nvlinks, {*cells}), key=nvlinks, reverse=True)),
            all_to_all=all(map(nvlinks, cells)),
        )
        found += [island] if cells else []
    return tuple(found)


def pcie_groups(topology: Topology) -> tuple[tuple[str, ...], ...]:
    """Return the groups of GPUs that NVLink or PCIe switches join (NV#, PIX, PXB)."""
    return tuple(
        tuple(topology.gpus[index] for index in group) for group in _groups(topology, limit=NEAR)
    )


@lru_cache(maxsize=4096)
def nearest_nics(topology: Topology) -> tuple[Nearest, ...]:
    """Return the nearest NICs of every GPU; empty where there is no NIC."""
    if not topology.nics:
        return ()
    found = []
    for index, gpu in enumerate(topology.gpus):
        links = [topology.nic_link(index, nic) for nic in range(len(topology.nics))]
        best = min(links, key=closeness)
        nics = tuple(
            nic.device or nic.name
            for nic, link in zip(topology.nics, links, strict=True)
            if link == best
        )
        found.append(Nearest(gpu=gpu, link=best, nics=nics))
    return tuple(found)


@lru_cache(maxsize=4096)
def recommended_nics(topology: Topology) -> tuple[str, ...]:
    """Return the devices that belong into NCCL_IB_HCA, in the order of the matrix.

    Those that share PCIe switches with a GPU; where there are none, those nearest to a GPU on the
    same socket. Empty where the affinity recommends nothing, or device names are not known.
    """
    if any(nic.device is None for nic in topology.nics):
        return ()
    nearest = nearest_nics(topology)
    near = {nic for near in nearest if closeness(near.link) <= NEAR for nic in near.nics}
    if not near:
        near = {nic for near in nearest if near.link != "SYS" for nic in near.nics}
    return tuple(nic.device for nic in topology.nics if nic.device in near)


@lru_cache(maxsize=4096)
def far_nics(topology: Topology) -> tuple[str, ...]:
    """Return the NICs that share PCIe switches with no GPU, while others do.

    Those of a DGX carry storage or management.
    """
    near = [
        any(closeness(topology.nic_link(gpu, nic)) <= NEAR for gpu in range(len(topology.gpus)))
        for nic in range(len(topology.nics))
    ]
    if not any(near):
        return ()
    return tuple(
        nic.device or nic.name
        for nic, is_near in zip(topology.nics, near, strict=True)
        if not is_near
    )


@lru_cache(maxsize=4096)
def summary(topology: Topology) -> str:
    """Return one sentence about the links between GPUs, and one part about the NICs."""
    count = len(topology.gpus)
    parts = [f"{count} GPU" + ("s" if count != 1 else "")]
    if topology.view is View.P2P:
        return f"{parts[0]}, {_p2p(topology)}"
    if count > 1:
        parts.append(_between_gpus(topology))
    nearest = nearest_nics(topology)
    if not nearest:
        return ", ".join(parts)
    classes = sorted({near.link for near in nearest}, key=closeness)
    what = f"{len(topology.nics)} NIC" + ("s" if len(topology.nics) != 1 else "")
    return f"{', '.join(parts)}; {what}, nearest {' or '.join(classes)}"


def _between_gpus(topology: Topology) -> str:
    found = islands(topology)
    joined = {gpu for island in found for gpu in island.gpus}
    if len(found) == 1 and len(joined) == len(topology.gpus):
        links = "/".join(found[0].links)
        if found[0].all_to_all:
            return f"all joined by NVLink ({links})"
        return f"an NVLink mesh ({links}), not all pairs have a link"
    if found:
        return f"{_listed('NVLink island', [island.gpus for island in found])}"
    none = _NO_NVLINK[topology.view]
    groups = [group for group in pcie_groups(topology) if len(group) > 1]
    if groups:
        return f"{none}; {_listed('PCIe group', groups)}"
    classes = sorted({link for _, _, link in topology.gpu_pairs()}, key=closeness)
    return f"{none}, all pairs {' or '.join(classes)}"


def _listed(what: str, groups: list[tuple[str, ...]]) -> str:
    plural = "s" if len(groups) != 1 else ""
    return f"{len(groups)} {what}{plural}: {' + '.join(fold(group) for group in groups)}"


def _p2p(topology: Topology) -> str:
    states = Counter(state for _, _, state in topology.gpu_pairs())
    if not states:
        return "no pair"
    if set(states) == {"OK"}:
        return "peer-to-peer access between all pairs"
    return f"peer-to-peer access between {states['OK']} of {states.total()} pairs"


def warnings(topology: Topology) -> tuple[str, ...]:
    """Return everything about this one machine that may slow a job down."""
    found = (
        [p2p_warning(topology)]
        if topology.view is View.P2P
        else [
            through_cpu_warning(topology),
            *nvlink_warnings(topology),
            count_warning(topology),
            nic_warning(topology),
            numa_warning(topology),
        ]
    )
    return tuple(filter(None, found))


def p2p_warning(topology: Topology) -> str | None:
    """Return a warning where the driver does not let two GPUs read each other's memory."""
    bad = [(a, b, state) for a, b, state in topology.gpu_pairs() if state != "OK"]
    if not bad:
        return None
    a, b, state = bad[0]
    return (
        f"{len(bad)} pairs of GPUs have no peer-to-peer access, such as {topology.gpus[a]} and "
        f"{topology.gpus[b]} ({state}): their data is copied through host memory"
    )


@lru_cache(maxsize=4096)
def through_cpu_warning(topology: Topology) -> str | None:
    """Return a warning where all GPUs talk to each other through the CPU (PHB, NODE, SYS)."""
    classes = {link for _, _, link in topology.gpu_pairs()}
    if not classes or min(closeness(link) for link in classes) <= NEAR:
        return None
    seen = "/".join(sorted(classes, key=closeness))
    why = f"no two GPUs have NVLink or a PCIe switch in common (all {seen})"
    if topology.view is None:
        return f"{why}, unless this is `topo -mp`, which hides NVLink: look at `topo -m`"
    if topology.view is View.PCIE:
        return None
    return f"{why}: all traffic passes the CPU, scaling drops after 2-4 GPUs"


@lru_cache(maxsize=4096)
def nvlink_warnings(topology: Topology) -> tuple[str, ...]:
    """Return a warning for each GPU that has less NVLink than its neighbours.

    Bridged pairs and hybrid meshes are uneven by design; a machine is judged only where at least
    three GPUs are joined all to all.
    """
    found = []
    for island in islands(topology):
        if not island.all_to_all or len(island.gpus) < 3:
            continue
        joined = {gpu for other in islands(topology) for gpu in other.gpus}
        lonely = [gpu for gpu in topology.gpus if gpu not in joined]
        if lonely:
            found.append(f"no NVLink on {fold(lonely)}, while {fold(island.gpus)} have it")
        found += _narrow(topology, island)
    return tuple(found)


def _narrow(topology: Topology, island: Island) -> Iterable[str]:
    members = [topology.gpus.index(gpu) for gpu in island.gpus]
    pairs = {(a, b): nvlinks(topology.cells[a][b]) for a, b in combinations(members, 2)}
    usual = Counter(pairs.values()).most_common(1)[0][0]
    if usual < _SWITCHED:
        return
    narrow = Counter(index for pair, n in pairs.items() if n != usual for index in pair)
    if narrow:
        index, _ = narrow.most_common(1)[0]
        widths = {n for pair, n in pairs.items() if n != usual and index in pair}
        classes = "/".join(f"NV{n}" for n in sorted(widths))
        yield f"{topology.gpus[index]} has {classes} where most pairs have NV{usual}"


def count_warning(topology: Topology) -> str | None:
    """Return a warning where one GPU seems to be missing from a board with NVSwitches."""
    found = islands(topology)
    count = len(topology.gpus)
    if count not in _SHORT or len(found) != 1 or not found[0].all_to_all:
        return None
    if len(found[0].gpus) != count or min(map(nvlinks, found[0].links)) < _SWITCHED:
        return None
    return (
        f"{count} GPUs, where such boards have {count + 1}: one is missing, unless a job hides it"
    )


def grace(topology: Topology) -> bool:
    """Tell whether the CPUs are Grace: a GPU reaches NICs over its CPU by NVLink-C2C.

    Their matrix says NODE or SYS for every NIC, and that is no fault.
    """
    if any(affinity.gpu_numa is not None for affinity in topology.affinity):
        return True
    cpus = [affinity.cpus for affinity in topology.affinity if affinity.cpus]
    if not cpus or not all(map(_GRACE.fullmatch, cpus)) or len(topology.gpus) > _GRACE_GPUS:
        return False
    return all(nvlinks(link) >= _SWITCHED for _, _, link in topology.gpu_pairs())


@lru_cache(maxsize=4096)
def nic_warning(topology: Topology) -> str | None:
    """Return a warning where GPUs share no PCIe switch with a NIC."""
    far = [near for near in nearest_nics(topology) if closeness(near.link) > NEAR]
    if not far or grace(topology):
        return None
    classes = "/".join(sorted({near.link for near in far}, key=closeness))
    if [affinity.cpus for affinity in topology.affinity] == [_GB10] and classes == "NODE":
        # Other machines may look like this, too.
        return (
            "no NIC on the same PCIe switch as GPU0 (best is NODE): GPUDirect RDMA passes the CPU "
            "or is off; on GB10, whose CPU and GPU share their memory, that is by design"
        )
    return (
        f"no NIC on the same PCIe switch as {fold(near.gpu for near in far)} (best is {classes}): "
        "GPUDirect RDMA passes the CPU or is off"
    )


@lru_cache(maxsize=4096)
def numa_warning(topology: Topology) -> str | None:
    """Return a warning where the NUMA affinity contradicts the links, or is known in part only."""
    numa = [affinity.numa for affinity in topology.affinity]
    if None in numa and any(numa):
        lacking = [g for g, node in zip(topology.gpus, numa, strict=True) if node is None]
        return f"no NUMA affinity for {fold(lacking)}, while the others have one"
    for a, b, link in topology.gpu_pairs():
        # NV# says nothing about PCIe; the others short of SYS stay within one NUMA node.
        if not nvlinks(link) and link != "SYS" and numa[a] != numa[b]:
            return (
                f"{topology.gpus[a]} and {topology.gpus[b]} are {link} but on NUMA nodes "
                f"{numa[a]} and {numa[b]}"
            )
    return None


def _groups(topology: Topology, *, limit: int) -> list[tuple[int, ...]]:
    """Return the connected groups of GPUs over links at most as far as `limit`."""
    group = list(range(len(topology.gpus)))
    for a, b, link in topology.gpu_pairs():
        if topology.view is not View.P2P and closeness(link) <= limit and group[a] != group[b]:
            old, new = max(group[a], group[b]), min(group[a], group[b])
            group = [new if of == old else of for of in group]
    order = sorted(range(len(group)), key=lambda index: (group[index], index))
    return [tuple(members) for _, members in groupby(order, key=lambda index: group[index])]


_WHOLE = 4
"""A job that sees fewer GPUs may share the machine: NICs near none of them may be near others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameList:
    """A list of interfaces or HCAs, such as NCCL_IB_HCA: what it takes of those that are there."""

    names: tuple[tuple[str, int | None], ...]
    """Name or prefix, and the port; None for all ports."""
    exact: bool = False
    exclude: bool = False

    def takes(self, device: str, port: int | None = None) -> bool:
        """Tell whether NCCL uses this device; None asks for any port of it."""
        listed = any(
            self._matches(device, name) and (port is None or wanted in {None, port})
            for name, wanted in self.names
        )
        return listed != self.exclude if self.names else True

    def taken(self, there: Sequence[str]) -> tuple[str, ...]:
        """Return the names that it takes; a list without names excludes none, or takes none."""
        return tuple(n for n in there if self.takes(n)) if self.names or self.exclude else ()

    def by_item(self, there: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """Return the names that each item of the list matches."""
        return {item: tuple(n for n in there if self._matches(n, item)) for item, _ in self.names}

    def _matches(self, name: str, item: str) -> bool:
        return name == item if self.exact else name.startswith(item)


def parse_names(value: str, *, plain: bool = False) -> NameList:
    """Read `[^][=]name[:port],...` as NCCL does: empty names dropped, no blank trimmed.

    `^` turns the list into what to leave out, `=` asks for exact names; without it each name is a
    prefix, so that mlx5_1 takes mlx5_10 too (NCCL source: src/misc/utils.cc `matchIfList`,
    src/transport/net_ib.cc).

    With `plain`, the library knows neither `^` and `=` nor prefixes.
    """
    exclude = value.startswith("^") and not plain
    rest = value[1:] if exclude else value
    exact = plain or rest.startswith("=")
    rest = rest[1:] if exact and not plain else rest
    names = []
    for word in filter(None, rest.split(",")):
        name, _, port = word.partition(":")
        if name:  # NCCL takes no item without one
            names.append((name, int(port) if re.fullmatch(r"[0-9]{1,3}", port) else None))
    return NameList(names=tuple(names), exact=exact, exclude=exclude)


def compare_hca(
    topology: Topology, value: str, *, down: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield what is odd about a value of NCCL_IB_HCA on a machine with this topology.

    Devices that are `down` are not missed: NCCL uses ports in state Active only.
    """
    devices = [nic.device for nic in topology.nics if nic.device is not None]
    if not devices or len(devices) != len(topology.nics):
        return
    names = parse_names(value)
    taken = [device for device in devices if names.takes(device)]
    if not taken:
        yield f"NCCL_IB_HCA={value} takes none of the NICs"
        return
    far = [device for device in far_nics(topology) if device in taken]
    if len(topology.gpus) < _WHOLE:
        far = []
    if far:
        named = {name for name, _ in names.names}
        surprise = not (names.exact or names.exclude) and not named & set(far)
        how = " (its names are prefixes)" if surprise else ""
        yield f"NCCL_IB_HCA takes {','.join(far)}, near no GPU{how}"
    recommended = recommended_nics(topology)
    left_out = [device for device in recommended if device not in taken and device not in down]
    if left_out:
        yield f"NCCL_IB_HCA leaves out {','.join(left_out)}, near a GPU"
