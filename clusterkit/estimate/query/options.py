"""The options of `clusterkit estimate`: its flags, and the arguments of `clusterkit.estimate()`.

Each stands here once, as a job's do in `launch/options.py`: flags, their help, the reference page
and the Python signature follow.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

from clusterkit.launch.option_rows import Option

_MODEL, _MACHINES, _TRAINING, _SHOW = "Model", "Machines", "Training", "What to show"


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateOptions:
    """A question as it is given; None where nothing is said."""

    model: Annotated[str | os.PathLike[str] | None, Option("MODEL",
        "Name (clusterkit explain models), config.json or its folder, or package.module:factory.",
        panel=_MODEL, short="-m")] = None
    params: Annotated[str | float | None, Option("N",
        "Instead: so many parameters in the usual shape, as 7B.", panel=_MODEL)] = None
    seq: Annotated[int | None, Option("L",
        "Tokens of a sequence (4096, or what the model has).", panel=_TRAINING)] = None
    micro_batch: Annotated[int | None, Option("B",
        "Sequences per GPU and forward pass (1).", panel=_TRAINING, short="-b")] = None
    accumulation: Annotated[int | None, Option("K",
        "Gradient accumulation steps (1).", panel=_TRAINING)] = None
    global_batch: Annotated[int | None, Option("B",
        "Sequences of a step in all.", panel=_TRAINING)] = None
    gpu: Annotated[str | None, Option("NAME",
        "h100, a100-40, ... (clusterkit explain gpus), or figures: "
        "mine:memory=48,bf16=200,bandwidth=900; nodes of two kinds: 8xa100-80+8xh100.",
        panel=_MACHINES)] = None
    gpus: Annotated[int | None, Option("N",
        "How many; those of one machine, with --on.", panel=_MACHINES, short="-n")] = None
    gpus_per_node: Annotated[int | None, Option("G",
        "In each machine (8, or the cluster's).", panel=_MACHINES, short="-g")] = None
    host_memory: Annotated[float | None, Option("GB",
        "RAM of a node in GB, for what is offloaded (what is usual with such GPUs).",
        panel=_MACHINES)] = None
    interconnect: Annotated[str | None, Option("NAME",
        "Network between nodes: ndr, roce-100, 4xhdr, ... (clusterkit explain "
        "interconnects).", panel=_MACHINES)] = None
    power_limit: Annotated[float | None, Option("WATT",
        "Of each GPU (nvidia-smi -pl): what it costs in speed, where that was measured.",
        panel=_MACHINES)] = None
    on: Annotated[str | None, Option("CLOUD:TYPE",
        "On rented machines, as aws:p5.48xlarge: their GPUs, network and price; several, "
        "behind commas, are ranked by money.", panel=_MACHINES)] = None
    cluster: Annotated[str | None, Option("NAME",
        "Cluster whose measurements and slots count.", panel=_MACHINES, short="-c")] = None
    strategy: Annotated[str | None, Option("NAME",
        "Only this one: ddp, fsdp, fsdp-hybrid, zero1, zero2, zero3, zero3-offload, "
        "megatron-tp8-pp2, lora, ... (clusterkit explain strategies).",
        panel=_TRAINING, short="-s")] = None
    tp: Annotated[int | None, Option("T", "Tensor-parallel ranks.", panel=_TRAINING)] = None
    pp: Annotated[int | None, Option("P", "Pipeline stages.", panel=_TRAINING)] = None
    vpp: Annotated[int | None, Option("V",
        "Virtual pipeline stages per GPU (interleaving).", panel=_TRAINING)] = None
    cp: Annotated[int | None, Option("C", "Context-parallel ranks.", panel=_TRAINING)] = None
    ep: Annotated[int | None, Option("E", "Expert-parallel ranks.", panel=_TRAINING)] = None
    precision: Annotated[str | None, Option("NAME",
        "bf16 (fp16 where there is none), fp16, fp32, fp8, pure-bf16, amp-bf16, "
        "amp-fp16.", panel=_TRAINING)] = None
    optimizer: Annotated[str | None, Option("NAME",
        "adamw, adamw-8bit, paged-adamw-8bit, adafactor, sgd.", panel=_TRAINING)] = None
    checkpointing: Annotated[str | None, Option("NAME",
        "Of activations: none, selective, full.", panel=_TRAINING)] = None
    loss: Annotated[str | None, Option("NAME", "eager, chunked, fused.", panel=_TRAINING)] = None
    offload: Annotated[str | None, Option("WHERE", "none, cpu, nvme.", panel=_TRAINING)] = None
    lora_rank: Annotated[int | None, Option("R",
        "Train adapters of this rank only.", panel=_TRAINING)] = None
    qlora: Annotated[bool, Option("",
        "Adapters, frozen weights in 4 bits.", panel=_TRAINING)] = False
    no_sync: Annotated[bool, Option("",
        "Reduce gradients only once per step (FSDP's no_sync).", panel=_TRAINING)] = False
    compiled: Annotated[bool, Option("",
        "With torch.compile.", panel=_TRAINING, flag="--compile")] = False
    no_flash: Annotated[bool, Option("",
        "Materialises attention scores (no FlashAttention).", panel=_TRAINING,
        flag="--no-flash-attention")] = False
    margin: Annotated[str | float | None, Option("PART",
        "Memory headroom on each GPU (8%).", panel="Options")] = None
    tokens: Annotated[str | float | None, Option("N",
        "Say how long so many take, as 2T.", panel=_SHOW)] = None
    price: Annotated[float | None, Option("X",
        "And what it costs, at this price per GPU hour.", panel=_SHOW)] = None
    own: Annotated[float | None, Option("PRICE",
        "From how much use on it costs less to own the machines of all these GPUs, for so much.",
        panel=_SHOW)] = None
    power: Annotated[float | None, Option("KW",
        "What they draw, with --own.", panel=_SHOW)] = None
    price_kwh: Annotated[float | None, Option("X",
        "Of electricity, with --own.", panel=_SHOW)] = None
    years: Annotated[float | None, Option("Y",
        "How long they are kept, with --own.", panel=_SHOW)] = None
    explain: Annotated[bool, Option("",
        "Every term of one strategy, with formula and source.", panel=_SHOW)] = False
    scale: Annotated[bool, Option("", "Throughput over the number of GPUs.", panel=_SHOW)] = False
# fmt: on
