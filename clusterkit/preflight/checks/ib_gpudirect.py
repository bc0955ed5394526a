"""IB008: whether RDMA devices may reach GPU memory."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.probes.gpu.gpudirect import PROBE, GpuDirect

ABOUT = About(
    what="nvidia_peermem is loaded, or the driver is NVIDIA's open one on kernel 5.12 or later"
    " (dma-buf).",
    why="Without either, every byte between nodes is copied through host memory: often half the"
    " bandwidth, and CPU time.",
    how="/proc/modules, uname -r and /proc/driver/nvidia/version. One of the two ways is enough.",
    fix="`modprobe nvidia_peermem` (and /etc/modules-load.d), or install the open kernel module.",
    source="NVIDIA GPU Operator, GPUDirect RDMA; NCCL source, src/transport/net_ib.cc",
)


def judge(evidence: Evidence) -> Judgement:
    """Warn of nodes without GPUDirect RDMA."""
    if evidence.job.uses_gpus is False or len(evidence.job.hosts) < 2:
        why = "the job uses no GPU" if evidence.job.uses_gpus is False else "one node"
        yield None, Ruling(verdict=Verdict.SKIP, summary=why)
        return
    yield from each(evidence, PROBE, _rule)


def _rule(facts: GpuDirect) -> Ruling:
    if facts.peermem:
        return passed("GPUDirect RDMA by nvidia_peermem")
    if facts.dma_buf:
        return passed("GPUDirect RDMA by dma-buf")
    kernel = ".".join(str(part) for part in facts.kernel)
    driver = "open" if facts.open_driver else "closed"
    return Ruling(
        verdict=Verdict.WARN,
        summary="no GPUDirect RDMA: nvidia_peermem is not loaded, and no dma-buf",
        evidence=f"kernel {kernel}, {driver} driver",
        hint="load it: sudo modprobe nvidia_peermem",
        command="lsmod | grep peermem; modinfo nvidia_peermem",
    )


CHECK = Check(id="IB008", name="ib-gpudirect", about=ABOUT, probes=(PROBE,), judge=judge)
