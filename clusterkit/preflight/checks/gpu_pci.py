"""GPU006: nvidia-smi shows every GPU that is on the PCI bus."""

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
from clusterkit.preflight.probes.gpu import nvidia_list, pci_gpus
from clusterkit.preflight.probes.gpu.pci_gpus import NVIDIA, PciGpus
from clusterkit.transport.probe import Missing

_DRIVERS = frozenset({"", "nvidia"})
"""Others hold a GPU on purpose: vfio-pci gives it to a virtual machine."""


def _judge(evidence: Evidence) -> Judgement:
    for node in evidence.nodes:
        bus, listed = node.of(pci_gpus.PROBE), node.of(nvidia_list.PROBE)
        if isinstance(bus, Missing):
            yield node.name, missing(bus)
        elif isinstance(listed, Missing):
            yield node.name, missing(listed)
        else:
            yield node.name, _rule(bus, len(listed.gpus))


def _rule(bus: PciGpus, listed: int) -> Ruling:
    ours = [gpu for gpu in bus.gpus if gpu.vendor == NVIDIA and gpu.driver in _DRIVERS]
    gone = [gpu.address for gpu in ours if gpu.gone]
    if gone:
        return Ruling(
            verdict=Verdict.FAIL,
            summary=f"GPU at {', '.join(gone)} has fallen off the bus",
            evidence="its PCI configuration reads as ones",
            hint="power-cycle the node; if it comes back, have the GPU or its riser replaced",
            command=f"lspci -s {quote(gone[0])}; dmesg | grep -i 'fallen off'",
        )
    if not ours:
        return Ruling(verdict=Verdict.SKIP, summary="no NVIDIA GPU on the PCI bus")
    if listed >= min(len(ours), bus.granted or len(ours)):
        return passed("all GPUs on the PCI bus answer")
    return Ruling(
        verdict=Verdict.FAIL,
        summary=f"{len(ours)} GPUs on the PCI bus, nvidia-smi shows {listed}",
        evidence=", ".join(gpu.address for gpu in ours),
        hint="the driver gave one up: look for Xid 79 in the kernel log, then reboot",
        command="nvidia-smi -L; dmesg | grep NVRM | tail",
    )


CHECK = Check(
    id="GPU006",
    name="gpu-pci",
    about=About(
        what="Every NVIDIA GPU on the PCI bus is also known to the driver.",
        why="A GPU that fell off the bus does not come back without a power cycle.",
        how="/sys/bus/pci/devices (vendor 10de, display class) against `nvidia-smi -L`. GPUs that "
        "another driver holds do not count, nor those that a container or a Slurm job was not "
        "given (no device node, or one that may not be opened).",
        fix="Power-cycle the node; replace the GPU if it happens again.",
        source="PCI: reads of a device that does not answer return ones; Xid 79 of NVIDIA.",
    ),
    probes=(pci_gpus.PROBE, nvidia_list.PROBE),
    judge=_judge,
)
