"""GPUs on the PCI bus, whatever their driver says, and whether RDMA reaches their memory.

The output of `lspci` is read too, so that a bundle which somebody collected by hand can be judged.

A GPU that fell off the bus still has its place in sysfs, but its registers read as ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from clusterkit.core.data import read_snippet
from clusterkit.core.untrusted import whole
from clusterkit.preflight.probes.gpu import for_gpu_jobs
from clusterkit.preflight.probes.gpu.nvidia import LANE, TIMEOUT_S
from clusterkit.preflight.probes.snippets import matched
from clusterkit.transport.probe import Probe, Unparsed

_LINE = re.compile(
    r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) 0x([0-9a-f]{6})"
    r" 0x([0-9a-f]{4}):0x[0-9a-f]{4} (\S*)- ([0-9a-f]*|-)"
)
NVIDIA = "10de"


@dataclass(frozen=True, slots=True, kw_only=True)
class PciGpu:
    """A display or compute controller."""

    address: str
    """Such as `0000:9b:00.0`."""
    vendor: str
    driver: str
    """Kernel module that has it, such as `nvidia`; empty where none has."""
    gone: bool
    """Its configuration reads as ones: it fell off the bus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PciGpus:
    """The GPUs on the bus of a node."""

    granted: int
    """Device nodes of the NVIDIA driver that we may open."""
    gpus: tuple[PciGpu, ...]


def parse(text: str) -> PciGpus:
    """Read what the snippet prints, or lspci."""
    head, _, lines = text.partition("\n")
    granted = re.fullmatch(r"pci (\d{1,4})", head.strip())
    if granted is None:
        if not text.strip():
            raise Unparsed("no device is listed")
        return PciGpus(granted=0, gpus=tuple(_lspci_gpus(text)))
    gpus = tuple(
        PciGpu(
            address=found[1],
            vendor=found[3],
            driver=found[4],
            gone=found[5] == "ffffffff",
        )
        for found in matched(lines, _LINE)
    )
    return PciGpus(granted=int(granted[1]), gpus=gpus)


_GPU_KINDS = frozenset({"3D controller", "VGA compatible controller", "Display controller"})
_LSPCI = re.compile(
    r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([^:\[]+?)(?: \[[0-9a-f]{4}\])?: (.+)"
)


def _lspci_gpus(text: str) -> Iterator[PciGpu]:
    """Yield the GPUs of NVIDIA in `lspci`, with or without domains (`-D`) and numbers (`-nn`).

    NVSwitches and bridges are none. Lspci tells neither their driver nor who may open them.

    Raises:
        Unparsed: a line is no device.
    """
    lines = (line.rstrip() for line in text.splitlines())
    for found in matched("\n".join(lines), _LSPCI):
        if found[2] in _GPU_KINDS and "nvidia" in found[3].lower():
            gone = found[3].endswith("(rev ff)")
            yield PciGpu(address=found[1], vendor=NVIDIA, driver="", gone=gone)


PROBE = Probe(
    name="pci-gpus",
    command=for_gpu_jobs(read_snippet("pci_gpus")),
    parse=parse,
    timeout_s=TIMEOUT_S,
    lane=LANE,
)


DMA_BUF_KERNEL = (5, 12)
"""First kernel whose RDMA core takes dma-buf memory; NVIDIA's open driver exports it
(NCCL source, src/transport/net_ib.cc, ncclIbDmaBufSupport; NVIDIA GPU Operator, GPUDirect RDMA)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDirect:
    """The two ways by which RDMA reaches GPU memory."""

    kernel: tuple[int, int]
    peermem: str | None
    """The module that is loaded: nvidia_peermem, the older nv_peer_mem, or EFA's own."""
    open_driver: bool
    """NVIDIA's open kernel module, the only one with dma-buf."""

    @property
    def dma_buf(self) -> bool:
        """Whether dma-buf can be used."""
        return self.open_driver and self.kernel >= DMA_BUF_KERNEL


def parse_gpudirect(text: str) -> GpuDirect:
    """Read the kernel's release, the modules, and `/proc/driver/nvidia/version`."""
    kernel = re.search(r"^kernel (\d{1,3})\.(\d{1,4})", text, re.MULTILINE)
    module = re.search(r"^module (\w{1,40})$", text, re.MULTILINE)
    driver = re.search(r"^NVRM version: (.*)", text, re.MULTILINE)
    if kernel is None or driver is None:
        raise Unparsed("no kernel release" if kernel is None else "no NVRM version")
    return GpuDirect(
        kernel=(whole(kernel[1]), whole(kernel[2])),
        peermem=module[1] if module else None,
        open_driver="Open Kernel Module" in driver[1],
    )


GPUDIRECT = Probe(name="gpudirect", command=read_snippet("gpudirect"), parse=parse_gpudirect)
