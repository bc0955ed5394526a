"""Bus bandwidth of large all-reduces, as others have published it for whole systems.

Messages of 1 GiB and more. Where several figures are published for the same hardware, the lowest
that a vendor calls good is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One system, and what it reaches."""

    gpu: re.Pattern[str]
    """Found in what NVIDIA's or AMD's driver calls the GPU."""
    nodes: int
    per_node: int
    gbs: float
    """GB/s of bus bandwidth, an all-reduce."""
    system: str
    source: str


def _nodes_of_eight(gpu: str, nodes: int, gbs: float, system: str, source: str) -> Published:
    return Published(
        gpu=re.compile(gpu), nodes=nodes, per_node=8, gbs=gbs, system=system, source=source
    )


ONE_NODE = (
    _nodes_of_eight(r"A100-SXM4", 1, 231.7, "8 A100 SXM, NVSwitch", "facebookresearch/gcm"),
    _nodes_of_eight(r"H100 80GB HBM3", 1, 480.0, "8 H100 SXM, NVSwitch", "AWS, aws-batch"),
    _nodes_of_eight(r"H200(?! NVL)", 1, 480.0, "8 H200 SXM, NVSwitch", "Azure NHC"),
    _nodes_of_eight(r"V100-SXM2", 1, 110.0, "8 V100 SXM2", "Azure NHC"),
)
"""NVIDIA's own systems."""

TWO_NODES = (
    # docs/slurm-cluster/slurm-perf-cluster.md
    _nodes_of_eight(r"A100", 2, 191.0, "2 DGX A100, 8 x HDR 200G", "NVIDIA/deepops"),
    _nodes_of_eight(r"H100", 2, 468.0, "2 nodes of 8 H100, 8 x 400G", "dstack"),
)
"""With a network adapter for each GPU: other networks carry less, which is no fault of a node."""

OTHERS = (
    _nodes_of_eight(r"MI300X", 1, 310.0, "8 MI300X", "Azure NHC, OCI"),
    Published(
        gpu=re.compile(r"A100.*PCIe"),
        nodes=1,
        per_node=4,
        gbs=25.0,
        system="4 A100 PCIe",
        source="Azure NHC",
    ),
    Published(
        gpu=re.compile(r"GB200"),
        nodes=18,
        per_node=4,
        gbs=835.0,
        system="GB200 NVL72, a whole rack",
        source="coreweave/nccl-tests",
    ),
)


def published_for(device: str, *, nodes: int, per_node: int) -> Published | None:
    """Return what is published for as many nodes of these GPUs; None where nothing is."""
    return next(_matching(device, nodes, per_node), None)


def _matching(device: str, nodes: int, per_node: int) -> Iterator[Published]:
    for one in (*ONE_NODE, *TWO_NODES, *OTHERS):
        if (one.nodes, one.per_node) == (nodes, per_node) and one.gpu.search(device):
            yield one
