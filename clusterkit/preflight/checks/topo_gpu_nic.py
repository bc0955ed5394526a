"""TOPO004: whether every GPU has a NIC near it, and one that is up."""

from __future__ import annotations

import re

from clusterkit.core.findings import Verdict
from clusterkit.core.hosts.hostlist import fold
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    NodeFacts,
    Ruling,
    missing,
    passed,
)
from clusterkit.preflight.probes.gpu.nvidia_list import PROBE as LIST
from clusterkit.preflight.probes.gpu.nvidia_topo import PROBE
from clusterkit.preflight.probes.host.nccl_topo_file import PROBE as TOPO_FILE
from clusterkit.preflight.probes.net.rdma import Rdma
from clusterkit.preflight.probes.net.rdma_ports import PROBE as PORTS
from clusterkit.preflight.topology import (
    NEAR,
    Nearest,
    Topology,
    closeness,
    grace,
    nearest_nics,
    nic_warning,
)
from clusterkit.transport.probe import Missing

_COHERENT = re.compile(r"\bG[BH]\d+")
"""Of names such as `NVIDIA GH200 480GB`: CPU and GPU share one memory."""

ABOUT = About(
    what="Every GPU shares a PCIe switch with a NIC (PIX or PXB) that has a port in state Active.",
    why="GPUDirect RDMA moves data from the GPU to the NIC without touching the CPU only where"
    " both are behind the same switches. Farther away, bandwidth between nodes drops, often to"
    " half, or NCCL turns GPUDirect off for that GPU.",
    how="nvidia-smi topo -m for the distance, /sys/class/infiniband/*/ports/*/state for the state."
    " Where the CPU is Grace (GH200, GB200, GB10) the way leads over NVLink-C2C, whatever the"
    " matrix says; and in a virtual machine NCCL_TOPO_FILE tells NCCL what the matrix cannot.",
    fix="Bring the named port up. Where no NIC is near by design, expect less bandwidth;"
    " NCCL_CROSS_NIC and PXN (NCCL 2.12 and later) soften it.",
    source="NCCL environment reference, NCCL_NET_GDR_LEVEL: PXB is the default reach;"
    " NCCL_TOPO_FILE",
)


def judge(evidence: Evidence) -> Judgement:
    """Warn of GPUs whose nearest NICs are far or down."""
    if len(evidence.job.hosts) < 2:
        yield None, Ruling(verdict=Verdict.SKIP, summary="one node: NICs carry nothing")
        return
    for node in evidence.nodes:
        topology, ports = node.of(PROBE), node.of(PORTS)
        if isinstance(topology, Missing):
            yield node.name, missing(topology)
        elif not topology.nics:
            yield node.name, Ruling(verdict=Verdict.SKIP, summary="no RDMA NIC in the matrix")
        else:
            yield node.name, _rule(node, topology, None if isinstance(ports, Missing) else ports)


def _rule(node: NodeFacts, topology: Topology, ports: Rdma | None) -> Ruling:
    down = frozenset() if ports is None else ports.down
    dead = [near for near in nearest_nics(topology) if near.nics and down.issuperset(near.nics)]
    if dead:
        return _warn(_dead(dead[0]), "; ".join(_dead(near) for near in dead[1:]))
    spare = sorted(down & {nic.device for nic in topology.nics})
    evidence = f"down: {','.join(spare)}" if spare else ""
    if nic_warning(topology) is not None:
        file = node.of(TOPO_FILE)
        if not isinstance(file, Missing):
            return passed("NCCL is told by a file which NIC each GPU is near to", file)
        listed = node.of(LIST)
        if not isinstance(listed, Missing) and any(_COHERENT.search(g.name) for g in listed.gpus):
            return passed("GPUs reach the NICs over NVLink-C2C", evidence)
        nearest = nearest_nics(topology)
        far = [near.gpu for near in nearest if closeness(near.link) > NEAR]
        who = "GPUs" if len(far) == len(nearest) else fold(far)
        links = "; ".join(f"{near.gpu}: {near.link}" for near in nearest)
        summary = f"{who} share no PCIe switch with a NIC: GPUDirect RDMA is slow or off"
        return _warn(summary, links)
    if grace(topology):
        return passed("GPUs reach the NICs over NVLink-C2C", evidence)
    return passed("every GPU has a NIC near it", evidence)


def _dead(near: Nearest) -> str:
    return f"{','.join(near.nics)}, nearest to {near.gpu}, is down"


def _warn(summary: str, evidence: str) -> Ruling:
    return Ruling(
        verdict=Verdict.WARN,
        summary=summary,
        evidence=evidence,
        hint="see which NIC each GPU is near to",
        command="nvidia-smi topo -m",
    )


CHECK = Check(
    id="TOPO004",
    name="topo-gpu-nic",
    about=ABOUT,
    probes=(PROBE, PORTS, LIST, TOPO_FILE),
    judge=judge,
)
