"""The strategies, GPUs and networks that `clusterkit estimate` knows by name."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.cli.explain.topic import Topic, paragraphs, table
from clusterkit.estimate.machines.gpus import GPUS, OWN_FIGURES
from clusterkit.estimate.machines.interconnects import NETWORKS, OWN_NETWORK
from clusterkit.estimate.models.named import preset_names
from clusterkit.estimate.strategies import STRATEGIES


def topics() -> Iterator[Topic]:
    """Yield what may stand behind --strategy, --gpu, --interconnect and --model."""
    yield Topic(
        name="strategies",
        summary="how a model is held on several GPUs (estimate --strategy)",
        text=paragraphs(
            "clusterkit estimate tries them, the simplest first. A name may go on with ranks, as "
            "in megatron-tp8-pp2, and with +ac for full activation checkpointing, +lora or +qlora."
        )
        + "\n\n"
        + table((strategy.name, strategy.summary) for strategy in STRATEGIES),
    )
    gpus = ((gpu.name, _figures(gpu.memory_gb, gpu.half_tflops)) for gpu in GPUS.values())
    yield Topic(
        name="gpus",
        summary="the GPUs that an estimate knows (estimate --gpu)",
        text=table(gpus) + "\n\n" + paragraphs(f"Any other: {OWN_FIGURES}."),
    )
    networks = (
        (network.name, f"{network.node_gbs(8):.0f} GB/s out of a node of 8 GPUs")
        for network in NETWORKS.values()
    )
    yield Topic(
        name="interconnects",
        summary="the networks between nodes that an estimate knows (estimate --interconnect)",
        text=table(networks) + "\n\n" + paragraphs(f"Any other: {OWN_NETWORK}."),
    )
    yield Topic(
        name="models",
        summary="the models that an estimate knows by name (estimate --model)",
        text=paragraphs(", ".join(preset_names()))
        + "\n\n"
        + paragraphs("Any other by its config.json, its size (--params) or its module."),
    )


def _figures(memory_gb: float, tflops: float) -> str:
    return f"{memory_gb:g} GB, {tflops:g} TFLOP/s in 16 bits"
