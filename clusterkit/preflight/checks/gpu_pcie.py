"""GPU016: PCIe links of GPUs that run below what both ends can do."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling
from clusterkit.preflight.checks.by_gpu import by_gpu
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu


def _judge(evidence: Evidence) -> Judgement:
    return by_gpu(evidence, _rule, "PCIe links have their full width")


def _rule(gpu: Gpu) -> Ruling | None:
    if gpu.pcie_width is None or gpu.pcie_width_max is None:
        return Ruling(verdict=Verdict.SKIP, summary="no PCIe link is told")
    command = f"nvidia-smi -q -i {gpu.index} | grep -A12 'GPU Link Info'"
    if gpu.pcie_width < gpu.pcie_width_max:
        return Ruling(
            verdict=Verdict.FAIL,
            summary=f"PCIe x{gpu.pcie_width} of x{gpu.pcie_width_max}",
            hint="reseat the GPU or its riser; on a workstation the slot may have no more lanes",
            command=command,
        )
    slow = gpu.pcie_gen and gpu.pcie_gen_max and gpu.pcie_gen < gpu.pcie_gen_max
    # An idle GPU lowers its generation to save power, and raises it under load.
    if slow and gpu.busy:
        return Ruling(
            verdict=Verdict.WARN,
            summary=f"PCIe generation {gpu.pcie_gen} of {gpu.pcie_gen_max} under load",
            hint="check the BIOS, the riser and the kernel log for corrected PCIe errors",
            command=command,
        )
    return None


CHECK = Check(
    id="GPU016",
    name="gpu-pcie",
    about=About(
        what="The PCIe link of every GPU has all its lanes, and its generation under load.",
        why="Half the lanes halve what goes to the host and to the network.",
        how="`pcie.link.{width,gen}.{current,max}` of `nvidia-smi --query-gpu`. The width fails; "
        "the generation only warns, and only where the GPU is busy.",
        fix="Reseat the GPU, the riser or the cable; then compare with the other nodes.",
        source="PCI Express link training: width does not change with the power state.",
    ),
    probes=(nvidia_gpus.PROBE,),
    judge=_judge,
)
