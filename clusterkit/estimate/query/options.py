"""The options of `clusterkit estimate`: its flags, and the arguments of `clusterkit.estimate()`.

Each stands here once: flags, their help, the reference page and the Python signature follow.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

_MODEL, _MACHINES, _TRAINING, _SHOW = "Model", "Machines", "Training", "What to show"


def _option(
    text: str, panel: str = "Options", metavar: str | None = None, *flags: str, default: Any = None
) -> Any:
    """Return a field with the help of its flag; `flags` where they are not `--field-name` alone."""
    metadata = {"help": text, "panel": panel, "metavar": metavar, "flags": flags}
    return field(default=default, metadata=metadata)


def _switch(text: str, panel: str, *flags: str) -> Any:
    return _option(text, panel, None, *flags, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateOptions:
    """A question as it is given; None where nothing is said."""

    model: str | os.PathLike[str] | None = _option(
        "Name (clusterkit explain models), config.json or its folder, or package.module:factory.",
        _MODEL, "MODEL", "--model", "-m",
    )  # fmt: skip
    params: str | float | None = _option(
        "Instead: so many parameters in the usual shape, as 7B.", _MODEL, "N"
    )
    seq: int | None = _option("Tokens of a sequence (4096, or what the model has).", _TRAINING, "L")
    micro_batch: int | None = _option(
        "Sequences per GPU and forward pass (1).", _TRAINING, "B", "--micro-batch", "-b"
    )
    accumulation: int | None = _option("Gradient accumulation steps (1).", _TRAINING, "K")
    global_batch: int | None = _option("Sequences of a step in all.", _TRAINING, "B")
    gpu: str | None = _option(
        "h100, a100-40, ... (clusterkit explain gpus), or figures: "
        "mine:memory=48,bf16=200,bandwidth=900.", _MACHINES, "NAME",
    )  # fmt: skip
    gpus: int | None = _option("How many.", _MACHINES, "N", "--gpus", "-n")
    gpus_per_node: int | None = _option(
        "In each machine (8, or the cluster's).", _MACHINES, "G", "--gpus-per-node", "-g"
    )
    host_memory: float | None = _option(
        "RAM of a node in GB, for what is offloaded (what is usual with such GPUs).",
        _MACHINES, "GB",
    )  # fmt: skip
    interconnect: str | None = _option(
        "Network between nodes: ndr, roce-100, 4xhdr, ... (clusterkit explain interconnects).",
        _MACHINES, "NAME",
    )  # fmt: skip
    cluster: str | None = _option(
        "Cluster whose measurements and slots count.", _MACHINES, "NAME", "--cluster", "-c"
    )
    strategy: str | None = _option(
        "Only this one: ddp, fsdp, fsdp-hybrid, zero1, zero2, zero3, zero3-offload, "
        "megatron-tp8-pp2, lora, ... (clusterkit explain strategies).",
        _TRAINING, "NAME", "--strategy", "-s",
    )  # fmt: skip
    tp: int | None = _option("Tensor-parallel ranks.", _TRAINING, "T")
    pp: int | None = _option("Pipeline stages.", _TRAINING, "P")
    vpp: int | None = _option("Virtual pipeline stages per GPU (interleaving).", _TRAINING, "V")
    cp: int | None = _option("Context-parallel ranks.", _TRAINING, "C")
    ep: int | None = _option("Expert-parallel ranks.", _TRAINING, "E")
    precision: str | None = _option(
        "bf16 (fp16 where there is none), fp16, fp32, fp8, pure-bf16, amp-bf16, amp-fp16.",
        _TRAINING, "NAME",
    )  # fmt: skip
    optimizer: str | None = _option(
        "adamw, adamw-8bit, paged-adamw-8bit, adafactor, sgd.", _TRAINING, "NAME"
    )
    checkpointing: str | None = _option("Of activations: none, selective, full.", _TRAINING, "NAME")
    loss: str | None = _option("eager, chunked, fused.", _TRAINING, "NAME")
    offload: str | None = _option("none, cpu, nvme.", _TRAINING, "WHERE")
    lora_rank: int | None = _option("Train adapters of this rank only.", _TRAINING, "R")
    qlora: bool = _switch("Adapters, frozen weights in 4 bits.", _TRAINING)
    no_sync: bool = _switch("Reduce gradients only once a step (FSDP's no_sync).", _TRAINING)
    compiled: bool = _switch("With torch.compile.", _TRAINING, "--compile")
    no_flash: bool = _switch(
        "Materialises attention scores (no FlashAttention).", _TRAINING, "--no-flash-attention"
    )
    margin: str | float | None = _option("Memory headroom on each GPU (8%).", metavar="PART")
    tokens: str | float | None = _option("Say how long so many take, as 2T.", _SHOW, "N")
    price: float | None = _option("And what it costs, at this price per GPU hour.", _SHOW, "X")
    explain: bool = _switch("Every term of one strategy, with formula and source.", _SHOW)
    scale: bool = _switch("Throughput over the number of GPUs.", _SHOW)
