"""TOPO003: whether GPUs reach each other without passing the CPU."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.probes.gpu.nvidia_topo import PROBE
from clusterkit.preflight.topology import Topology, through_cpu_warning

ABOUT = About(
    what="At least some GPUs of a node are joined by NVLink or a PCIe switch.",
    why="Where all pairs are PHB, NODE or SYS, every byte between GPUs passes the CPU or the link"
    " between sockets, which all GPUs share: scaling drops after 2-4 GPUs.",
    how="nvidia-smi topo -m: the nearest class of any pair of GPUs is farther than PXB.",
    fix="It is how the machine is built, or how a cloud passes GPUs into a virtual machine. Use"
    " fewer GPUs per node and more nodes, larger batches, or gradient accumulation; or ask for a"
    " machine with NVLink.",
    source="legend of nvidia-smi topo -m; NCCL source, src/graph/paths.cc",
)


def judge(evidence: Evidence) -> Judgement:
    """Warn of nodes whose GPUs talk through the CPU only."""
    yield from each(evidence, PROBE, _rule)


def _rule(topology: Topology) -> Ruling:
    if len(topology.gpus) < 2:
        return Ruling(verdict=Verdict.SKIP, summary="one GPU to be seen, no pair")
    odd = through_cpu_warning(topology)
    if odd is None:
        return passed("GPUs have links beside the CPU")
    classes = {link for _, _, link in topology.gpu_pairs()}
    return Ruling(
        verdict=Verdict.WARN,
        summary="GPUs talk through the CPU: scaling drops after 2-4 GPUs",
        evidence=f"all pairs are {' or '.join(sorted(classes))}",
        hint="fewer GPUs per node, larger batches, or machines with NVLink",
        command="clusterkit explain TOPO003",
    )


CHECK = Check(id="TOPO003", name="topo-gpu-links", about=ABOUT, probes=(PROBE,), judge=judge)
