"""Whether the kernel lets RDMA devices read and write GPU memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterkit.core.data import read_snippet
from clusterkit.core.untrusted import whole
from clusterkit.transport.probe import Probe, Unparsed

DMA_BUF_KERNEL = (5, 12)
"""First kernel whose RDMA core takes dma-buf memory; NVIDIA's open driver exports it
(NCCL source, src/transport/net_ib.cc, ncclIbDmaBufSupport; NVIDIA GPU Operator, GPUDirect RDMA)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDirect:
    """The two ways by which RDMA reaches GPU memory."""

    kernel: tuple[int, int]
    peermem: bool
    """nvidia_peermem (or the older nv_peer_mem) is loaded."""
    open_driver: bool
    """NVIDIA's open kernel module, the only one with dma-buf."""

    @property
    def dma_buf(self) -> bool:
        """Whether dma-buf can be used."""
        return self.open_driver and self.kernel >= DMA_BUF_KERNEL


def parse(text: str) -> GpuDirect:
    """Read the kernel's release, the modules, and `/proc/driver/nvidia/version`."""
    kernel = re.search(r"^kernel (\d{1,3})\.(\d{1,4})", text, re.MULTILINE)
    driver = re.search(r"^NVRM version: (.*)", text, re.MULTILINE)
    if kernel is None or driver is None:
        raise Unparsed("no kernel release" if kernel is None else "no NVRM version")
    return GpuDirect(
        kernel=(whole(kernel[1]), whole(kernel[2])),
        peermem=re.search(r"^module nv", text, re.MULTILINE) is not None,
        open_driver="Open Kernel Module" in driver[1],
    )


PROBE = Probe(name="gpudirect", command=read_snippet("gpudirect"), parse=parse)
