"""Bus bandwidth of large all-reduces, as others have published it for whole systems.

Messages of 1 GiB and more. Where several figures are published for the same hardware, the lowest
that a vendor calls good is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LEAST_BYTES = 1 << 30
"""Smaller messages are slower on the same links, and say nothing beside these figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One system, and what it reaches."""

    gpu: re.Pattern[str]
    """Found in what NVIDIA's or AMD's driver calls the GPU."""
    nodes: int
    per_node: int
    network: str | None = None
    """What joins the nodes, as `estimate` calls it; None where it does not matter."""
    gbs: float
    """GB/s of bus bandwidth, an all-reduce."""
    system: str
    source: str


def _node(gpu: str, gbs: float, system: str, source: str, *, gpus: int = 8) -> Published:
    return Published(
        gpu=re.compile(gpu), nodes=1, per_node=gpus, gbs=gbs, system=system, source=source
    )


def _nodes(gpu: str, network: str, gbs: float, system: str, source: str) -> Published:
    return Published(
        gpu=re.compile(gpu),
        nodes=2,
        per_node=8,
        network=network,
        gbs=gbs,
        system=f"2 nodes of {system}",
        source=source,
    )


_A100_SXM, _H100_SXM = r"A100-SXM", r"H100 80GB HBM3"
"""Those with PCIe are called `A100-PCIE-40GB`, `A100 80GB PCIe` and `H100 PCIe`."""

ONE_NODE = (
    _node(_A100_SXM, 231.7, "8 A100 SXM, NVSwitch", "facebookresearch/gcm"),
    _node(_H100_SXM, 480.0, "8 H100 SXM, NVSwitch", "AWS, aws-batch"),
    _node(r"H200(?! NVL)", 480.0, "8 H200 SXM, NVSwitch", "Azure NHC"),
    _node(r"V100-SXM2", 110.0, "8 V100 SXM2", "Azure NHC"),
)
"""NVIDIA's own systems."""

TWO_NODES = (
    # docs/slurm-cluster/slurm-perf-cluster.md
    _nodes(_A100_SXM, "infiniband-hdr", 191.0, "8 A100, 8 x HDR 200G", "NVIDIA/deepops"),
    _nodes(_H100_SXM, "infiniband-ndr", 468.0, "8 H100, 8 x 400G", "dstack"),
)
"""With a network adapter for each GPU, as NVIDIA sells them."""

_OTHERS = (
    _nodes(_H100_SXM, "roce-400", 468.0, "8 H100, 16 x 200G RoCE", "oracle-quickstart/oci-hpc"),
    _nodes(_A100_SXM, "efa-p4d", 78.0, "8 A100, 4 x 100G EFA", "AWS, nccl-tests"),
    _nodes(_H100_SXM, "efa-p5", 438.0, "8 H100, 32 x 100G EFA", "AWS, nccl-tests"),
    _node(r"MI300X", 310.0, "8 MI300X", "Azure NHC, OCI"),
    _node(r"^(?>.*?A100).*(?i:pcie)", 25.0, "4 A100 PCIe", "Azure NHC", gpus=4),
)


def published_for(
    device: str, *, nodes: int, per_node: int, network: str | None
) -> Published | None:
    """Return what is published for as many nodes of these GPUs; None where nothing is."""
    return next(_matching(device, nodes, per_node, network), None)


def _matching(device: str, nodes: int, per_node: int, network: str | None) -> Iterator[Published]:
    for one in (*ONE_NODE, *TWO_NODES, *_OTHERS):
        there = (one.nodes, one.per_node) == (nodes, per_node) and one.network in {None, network}
        if there and one.gpu.search(device):
            yield one
