"""The link classes of `nvidia-smi topo -m`."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.cli.explain.topic import Topic, paragraphs, table

_CLASSES = {
    "NV#": (
        "# bonded NVLinks between two GPUs",
        (
            "NV12 is 12 of them. All pairs of an NVSwitch machine have the same number: 6 on V100,"
            " 12 on A100, 18 on H100, H200 and B200. With bridges or a hybrid mesh (V100) only some"
            " pairs have any."
        ),
    ),
    "PIX": (
        "at most one PCIe bridge",
        "The best that a GPU and a NIC can have: GPUDirect RDMA at full speed.",
    ),
    "PXB": (
        "several PCIe bridges, not the CPU",
        "As good as PIX for most purposes: NCCL uses GPUDirect RDMA up to here by default.",
    ),
    "PHB": (
        "through a PCIe host bridge, as a rule the CPU",
        (
            "Traffic passes the CPU. Between GPUs that have nothing better, scaling drops after 2-4"
            " GPUs. In virtual machines it is often all that can be seen."
        ),
    ),
    "NODE": (
        "through several host bridges of one NUMA node",
        "NCCL knows no such class: it treats NODE as PHB, and ignores NCCL_P2P_LEVEL=NODE.",
    ),
    "SYS": (
        "through the link between sockets (UPI, Infinity Fabric)",
        (
            "The slowest way, shared by everything that crosses it. A GPU whose NIC is SYS sends"
            " through the other socket; NCCL may use another GPU of the node as a relay instead"
            " (PXN)."
        ),
    ),
}


def topics() -> Iterator[Topic]:
    """Yield the list of classes, nearest first, and one topic for each."""
    rows = [(name, summary) for name, (summary, _) in _CLASSES.items()]
    yield Topic(
        name="links",
        summary="the link classes of `clusterkit topo` and nvidia-smi topo -m",
        text=paragraphs("Nearest first; X is the device itself:") + "\n\n" + table(rows),
    )
    for name, (summary, text) in _CLASSES.items():
        yield Topic(
            name=name,
            summary=summary,
            text=paragraphs(f"{summary[0].upper()}{summary[1:]}.", text),
            group="links",
        )
