"""TOPO: how GPUs and NICs are joined on each node, and whether the nodes stand together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

from clusterkit.core.hosts.hostlist import fold
from clusterkit.preflight.checks.base import Part, each_machine, known, majority, most, node_check
from clusterkit.preflight.checks.gpu_links import no_nvlink_between
from clusterkit.preflight.checks.results import Advice, Result, Results, advice, ok, skip
from clusterkit.preflight.checks.types import Evidence, NodeFacts, Tier, check
from clusterkit.preflight.probes.gpu import nvidia_gpus, nvidia_links, nvidia_list
from clusterkit.preflight.probes.gpu.nvidia_links import TOPO, clique_of
from clusterkit.preflight.probes.host import nccl_settings, placement
from clusterkit.preflight.probes.net import rdma_ports
from clusterkit.preflight.topology import analysis
from clusterkit.preflight.topology.analysis import Nearest, compare_hca
from clusterkit.preflight.topology.matrix import Topology, closeness, nvlinks
from clusterkit.transport.probe import Missing, PreflightJob

_PART = Part(name="NVIDIA GPU", advice=advice("TOPO001", "lost"))


@check("TOPO001", "topo-uniform", TOPO, tier=Tier.ROUND_TRIP)
def _uniform(evidence: Evidence) -> Results:
    odd_links = advice("TOPO001")
    found, results = known(evidence, TOPO, part=_PART)
    yield from results
    shape = majority({name: matrix.names for name, matrix in found.items()})
    usual = usual_links(tuple(matrix for matrix in found.values() if matrix.names == shape))
    for name, matrix in found.items():
        if len(found) < 2:
            yield name, skip("no other node to compare with")
        elif shape is None:
            kinds = ", ".join(sorted({_count(other.names) for other in found.values()}))
            yield name, odd_links.warn("nodes differ in their GPUs and NICs, none is usual", kinds)
        elif matrix.names != shape:
            has = f"the matrix has {_count(matrix.names)}, on most nodes {_count(shape)}"
            yield name, odd_links.warn(has)
        elif odd := [d for d in differences(matrix, usual) if not nvlinks(d[1]) | nvlinks(d[2])]:
            yield name, odd_links.warn(f"{len(odd)} PCIe links differ from most nodes", _shown(odd))
        else:
            yield name, ok("GPUs and NICs are joined as on most nodes")


def usual_links(topologies: Sequence[Topology]) -> Mapping[tuple[int, int], str]:
    """Return the link that most nodes have between two columns; all have the same columns."""
    counts = Counter(topology.cells for topology in topologies)
    found: dict[tuple[int, int], str] = {}
    for a, b in combinations(range(len(topologies[0].names) if topologies else 0), 2):
        votes: Counter[str] = Counter()
        for cells, n in counts.items():
            votes[cells[a][b]] += n
        if (link := most(votes)) is not None:
            found[a, b] = link
    return found


def differences(
    topology: Topology, usual: Mapping[tuple[int, int], str]
) -> list[tuple[str, str, str]]:
    """Return the pairs of devices whose link is not the usual one, and both links."""
    names, cells = topology.names, topology.cells
    odd = (((a, b), link) for (a, b), link in usual.items() if cells[a][b] != link)
    return [(f"{names[a]}-{names[b]}", cells[a][b], link) for (a, b), link in odd]


def _shown(odd: Sequence[tuple[str, str, str]]) -> str:
    return ", ".join(f"{pair} {has} (most: {usual})" for pair, has, usual in odd[:8])


def _count(names: tuple[str, ...]) -> str:
    gpus = sum(name.startswith("GPU") for name in names)
    return f"{gpus} GPUs and {len(names) - gpus} NICs"


@check("TOPO002", "topo-nvlink", TOPO, tier=Tier.ROUND_TRIP)
def _nvlink(evidence: Evidence) -> Results:
    found, results = known(evidence, TOPO)
    yield from results
    shape = majority({name: matrix.names for name, matrix in found.items()})
    alike = tuple(matrix for matrix in found.values() if matrix.names == shape)
    usual = usual_links(alike) if len(found) > 1 else {}
    for name, matrix in found.items():
        pairs = differences(matrix, usual) if matrix.names == shape else []
        odd = [one for one in pairs if nvlinks(one[1]) < nvlinks(one[2])]
        if odd:
            (pair, has, on_most), more = odd[0], f" (and {len(odd) - 1} more pairs)"
            summary = f"{pair} is {has}, on most nodes {on_most}{more if len(odd) > 1 else ''}"
            yield name, advice("TOPO002").fail(summary, _shown(odd))
        elif faults := analysis.nvlink_warnings(matrix):
            yield name, advice("TOPO002").fail(faults[0], "; ".join(faults[1:]))
        elif few := analysis.count_warning(matrix):
            yield name, advice("TOPO002", "few").warn(few)
        elif analysis.islands(matrix):
            yield name, ok("NVLink is whole")
        else:
            yield name, skip("no NVLink between GPUs")


@node_check("TOPO003", "topo-gpu-links", TOPO)
def _gpu_links(matrix: Topology) -> Result:
    if len(matrix.gpus) < 2:
        return skip("one GPU to be seen, no pair")
    if analysis.through_cpu_warning(matrix) is None:
        return ok("GPUs have links beside the CPU")
    classes = {link for _, _, link in matrix.gpu_pairs()}
    summary = "GPUs talk through the CPU: scaling drops after 2-4 GPUs"
    return advice("TOPO003").warn(summary, f"all pairs are {' or '.join(sorted(classes))}")


_COHERENT = re.compile(r"\bG[BH]\d+")
"""Of names such as `NVIDIA GH200 480GB`: CPU and GPU share one memory."""


def _one_node(job: PreflightJob) -> str | None:
    return "one node: NICs carry nothing" if len(job.hosts) < 2 else None


@check(
    "TOPO004",
    "topo-gpu-nic",
    TOPO,
    rdma_ports.PROBE,
    nvidia_list.PROBE,
    nccl_settings.TOPO_FILE,
    skip_if=_one_node,
)
@each_machine
def _gpu_nic(node: NodeFacts) -> Result:
    matrix = node.need(TOPO)
    return _nics(node, matrix) if matrix.nics else skip("no RDMA NIC in the matrix")


def _nics(node: NodeFacts, matrix: Topology) -> Result:
    down, nearest = _down(node), analysis.nearest_nics(matrix)
    dead = [near for near in nearest if near.nics and down.issuperset(near.nics)]
    if dead:
        return advice("TOPO004").warn(_dead(dead[0]), "; ".join(_dead(near) for near in dead[1:]))
    spare = sorted(down & {nic.device for nic in matrix.nics})
    idle = f"down: {','.join(spare)}" if spare else ""
    coherent = ok("GPUs reach the NICs over NVLink-C2C", idle)
    if analysis.nic_warning(matrix) is None:
        return coherent if analysis.grace(matrix) else ok("every GPU has a NIC near it", idle)
    file, listed = node.of(nccl_settings.TOPO_FILE), node.of(nvidia_list.PROBE)
    if not isinstance(file, Missing):
        return ok("NCCL is told by a file which NIC each GPU is near to", file)
    if not isinstance(listed, Missing) and any(_COHERENT.search(g.name) for g in listed.gpus):
        return coherent
    far = [near.gpu for near in nearest if closeness(near.link) > analysis.NEAR]
    who = "GPUs" if len(far) == len(nearest) else fold(far)
    links = "; ".join(f"{near.gpu}: {near.link}" for near in nearest)
    summary = f"{who} share no PCIe switch with a NIC: GPUDirect RDMA is slow or off"
    return advice("TOPO004").warn(summary, links)


def _down(node: NodeFacts) -> frozenset[str]:
    ports = node.of(rdma_ports.PROBE)
    return frozenset() if isinstance(ports, Missing) else ports.down


def _dead(near: Nearest) -> str:
    return f"{','.join(near.nics)}, nearest to {near.gpu}, is down"


def _no_hcas(job: PreflightJob) -> str | None:
    if not job.env.get("NCCL_IB_HCA"):
        return "NCCL_IB_HCA is not set: NCCL chooses"
    return _one_node(job)


@check("TOPO005", "topo-nccl-ib-hca", TOPO, rdma_ports.PROBE, skip_if=_no_hcas)
def _nccl_ib_hca(evidence: Evidence) -> Results:
    value = evidence.job.env["NCCL_IB_HCA"]
    return each_machine(lambda node: _hcas(node.need(TOPO), value, _down(node)))(evidence)


def _hcas(matrix: Topology, value: str, down: frozenset[str]) -> Result:
    if not matrix.nics or any(nic.device is None for nic in matrix.nics):
        return skip("the matrix names no RDMA device")
    odd = tuple(compare_hca(matrix, value, down=down))
    if not odd:
        return ok("NCCL_IB_HCA takes the NICs near the GPUs")
    near = ",".join(nic for nic in analysis.recommended_nics(matrix) if nic not in down)
    fix = advice("TOPO005", "set" if near else "", near=near, value=value)
    return fix.warn(odd[0], "; ".join((*odd[1:], f"NCCL_IB_HCA={value}")))


@check("TOPO006", "topo-numa", TOPO, tier=Tier.ROUND_TRIP)
def _numa(evidence: Evidence) -> Results:
    found, results = known(evidence, TOPO)
    yield from results
    layouts = {name: tuple(a.numa for a in t.affinity) for name, t in found.items()}
    usual = majority({name: layout for name, layout in layouts.items() if any(layout)})
    for name, matrix in found.items():
        layout = layouts[name]
        if not any(layout):
            yield name, skip("NUMA nodes of GPUs are not known")
        elif odd := analysis.numa_warning(matrix):
            yield name, advice("TOPO006").warn(odd, _text(layout))
        elif usual is not None and layout != usual and len(layout) == len(usual):
            summary = "GPUs are on other NUMA nodes than on most nodes"
            differs = f"{_text(layout)}; most nodes: {_text(usual)}"
            yield name, advice("TOPO006").warn(summary, differs)
        else:
            yield name, ok("NUMA nodes of the GPUs are consistent")


def _text(layout: tuple[str | None, ...]) -> str:
    return "NUMA " + ",".join(node or "-" for node in layout)


_HINTED = ("aws", "azure", "gcp", "oci")
"""Clouds, of all of `core/metadata.py`, of which `checks.ini` says how to keep nodes together."""


def _nothing_apart(job: PreflightJob) -> str | None:
    return None if job.spans_nodes else "one node"


@check(
    "TOPO007",
    "topo-placement",
    placement.PROBE,
    placement.BLOCK,
    tier=Tier.ROUND_TRIP,
    skip_if=_nothing_apart,
)
def _placement(evidence: Evidence) -> Results:
    job, blocks = evidence.job, known(evidence, placement.BLOCK)[0]
    if blocks:
        inside = {n.name: f"block {b}" if (b := blocks.get(n.name)) else "" for n in evidence.nodes}
        yield from _together(inside, job, advice("TOPO007", "slurm"), racks=True)
        return
    if not job.asks_cloud:
        yield None, skip("platform: off asks no cloud")
        return
    found, results = known(evidence, placement.PROBE)
    yield from results
    places = {
        node: ", ".join(f"{kind} {name}" for kind, name in facts.places.items())
        for node, facts in found.items()
    }
    clouds = {facts.cloud for facts in found.values()}
    apart = advice("TOPO007", next((one for one in _HINTED if clouds == {one}), ""))
    none = "the cloud does not say where it stands"
    yield from _together(places, job, apart, none=none)


@check(
    "TOPO008",
    "topo-clique",
    nvidia_gpus.PROBE,
    nvidia_links.IMEX,
    tier=Tier.ROUND_TRIP,
    skip_if=no_nvlink_between,
)
def _clique(evidence: Evidence) -> Results:
    found, results = known(evidence, nvidia_gpus.PROBE)
    yield from results
    cliques = {node: clique_of(facts) for node, facts in found.items()}
    places = {node: f"NVLink domain {clique}" if clique else "" for node, clique in cliques.items()}
    none = "no NVLink between nodes"
    yield from _together(places, evidence.job, advice("TOPO008"), none=none, racks=True)
    if evidence.job.kind == "slurm":
        return  # a prolog lists the nodes that were asked together
    listed = known(evidence, nvidia_links.IMEX)[0]
    for clique in filter(None, dict.fromkeys(cliques.values())):
        here = {n: frozenset(one.nodes) for n, one in listed.items() if cliques.get(n) == clique}
        usual = most(Counter(here.values()))
        for node, nodes in here.items():
            if nodes and nodes != usual:
                what = "IMEX lists other nodes than on most" if usual else "IMEX lists differ"
                yield node, advice("TOPO008", "lists").fail(what, f"{len(nodes)} listed")


def _together(
    places: Mapping[str, str],
    job: PreflightJob,
    apart: Advice,
    *,
    none: str = "",
    racks: bool = False,
) -> Results:
    """Warn of nodes that are not in the place in which most of them are.

    There is nothing to warn of where Slurm chooses from them, and was told to keep the job's nodes
    together, or places are `racks`, none of which has as many (or it is asked for no job at all).
    """
    counts = Counter(filter(None, places.values()))
    if not counts:
        for node in places:
            yield node, skip(none)
        return
    ((usual, number),) = counts.most_common(1)
    seen = ", ".join(f"{place}: {n}" for place, n in counts.most_common(8))
    too_large = racks and number < (job.nodes or len(job.hosts))
    fine = job.kind == "slurm" and (job.kept_together or too_large)
    for node, place in places.items():
        if place and (place == usual or fine):
            yield node, ok(place, seen)
        else:
            where = f"{number} of {len(places)} nodes are in {usual}"
            yield node, apart.warn(f"{place or 'in none'}: {where}", seen)
