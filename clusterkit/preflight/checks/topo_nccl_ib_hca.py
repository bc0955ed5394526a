"""TOPO005: whether NCCL_IB_HCA names the NICs that are near the GPUs."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    missing,
    passed,
)
from clusterkit.preflight.probes.gpu.nvidia_topo import PROBE
from clusterkit.preflight.probes.net.rdma_ports import PROBE as PORTS
from clusterkit.preflight.topology import Topology, compare_hca, recommended_nics
from clusterkit.transport.probe import Missing

ABOUT = About(
    what="The job's NCCL_IB_HCA takes the NICs that share PCIe switches with the GPUs, and no"
    " others.",
    why="A NIC for storage or management among them is slower, or leads to another network, where"
    " NCCL hangs or fails. One that is left out costs its share of the bandwidth. Without `=` the"
    " names are prefixes: mlx5_1 takes mlx5_10 too.",
    how="nvidia-smi topo -m on every node, and the value as NCCL reads it: `^` to leave out, `=`"
    " for exact names, name:port. Devices that are down are not recommended.",
    fix="Set the value that the finding names, with `=`; or unset it and let NCCL choose.",
    source="NCCL environment reference, NCCL_IB_HCA; src/misc/utils.cc, matchIfList",
)


def judge(evidence: Evidence) -> Judgement:
    """Compare the value with the affinity of every node."""
    value = evidence.job.env.get("NCCL_IB_HCA")
    if not value or len(evidence.job.hosts) < 2:
        why = "one node: NICs carry nothing" if value else "NCCL_IB_HCA is not set: NCCL chooses"
        yield None, Ruling(verdict=Verdict.SKIP, summary=why)
        return
    for node in evidence.nodes:
        topology, ports = node.of(PROBE), node.of(PORTS)
        if isinstance(topology, Missing):
            yield node.name, missing(topology)
        else:
            down = frozenset() if isinstance(ports, Missing) else ports.down
            yield node.name, _rule(topology, value, down)


def _rule(topology: Topology, value: str, down: frozenset[str]) -> Ruling:
    if not topology.nics or any(nic.device is None for nic in topology.nics):
        return Ruling(verdict=Verdict.SKIP, summary="the matrix names no RDMA device")
    odd = tuple(compare_hca(topology, value, down=down))
    if not odd:
        return passed("NCCL_IB_HCA takes the NICs near the GPUs")
    wanted = ",".join(nic for nic in recommended_nics(topology) if nic not in down)
    return Ruling(
        verdict=Verdict.WARN,
        summary=odd[0],
        evidence="; ".join((*odd[1:], f"NCCL_IB_HCA={value}")),
        hint=f"set NCCL_IB_HCA: '={wanted}'" if wanted else "unset NCCL_IB_HCA",
        command=f"clusterkit topo --nccl-ib-hca {quote(value)}",
    )


CHECK = Check(
    id="TOPO005", name="topo-nccl-ib-hca", about=ABOUT, probes=(PROBE, PORTS), judge=judge
)
