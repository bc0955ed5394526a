"""What is asked of every strategy alike, and the setup that a strategy makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterkit.estimate.batch import solve_batch
from clusterkit.estimate.machines.gpus import Gpu
from clusterkit.estimate.setup import (
    TORCH,
    Adapter,
    Checkpointing,
    Library,
    Loss,
    Offload,
    Optimizer,
    Precision,
    Setup,
    Sharding,
)
from clusterkit.estimate.shapes import ModelShape
from clusterkit.estimate.strategies import Strategy, base_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked, whatever the strategy; None where the strategy decides."""

    model: ModelShape
    gpu: Gpu
    gpus: int
    gpus_per_node: int
    seq: int
    micro_batch: int
    global_batch: int
    tp: int | None = None
    pp: int | None = None
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    precision: str | None = None
    optimizer: Optimizer = Optimizer.ADAMW
    checkpointing: Checkpointing | None = None
    loss: Loss = Loss.EAGER
    offload: Offload | None = None
    adapter: Adapter | None = None
    flash_attention: bool = True
    compiled: bool = False
    no_sync: bool = False
    interconnect: str | None = None


def setup_of(
    strategy: Strategy,
    wish: Wish,
    *,
    tp: int | None = None,
    pp: int | None = None,
    checkpointing: Checkpointing | None = None,
) -> Setup:
    """Return the wish under a strategy, with the global batch that is asked for.

    Raises:
        UserError: the global batch does not divide into the ranks.
    """
    tp, pp = tp or wish.tp or 1, pp or wish.pp or 1
    adapter = wish.adapter or strategy.adapter
    hybrid = strategy.sharding is Sharding.HYBRID
    megatron = strategy.library is Library.MEGATRON
    per_node = min(wish.gpus_per_node, wish.gpus)
    ranks = max(wish.gpus // (tp * pp * wish.cp), 1)
    batch = solve_batch(ranks=ranks, micro_batch=wish.micro_batch, global_batch=wish.global_batch)
    return Setup(
        model=wish.model,
        gpu=wish.gpu,
        gpus=wish.gpus,
        gpus_per_node=per_node,
        library=strategy.library,
        sharding=strategy.sharding,
        shard_group=max(per_node // tp, 1) if hybrid else None,
        tp=tp,
        pp=pp,
        vpp=wish.vpp,
        cp=wish.cp,
        ep=wish.ep,
        seq=wish.seq,
        micro_batch=batch.micro_batch,
        accumulation=batch.accumulation,
        precision=precision_of(wish.precision, strategy.library, wish.gpu, adapter),
        optimizer=wish.optimizer,
        checkpointing=checkpointing or wish.checkpointing or Checkpointing.NONE,
        loss=wish.loss,
        flash_attention=wish.flash_attention,
        compiled=wish.compiled,
        offload_optimizer=strategy.offload_optimizer,
        offload_params=strategy.offload_params,
        no_sync=wish.no_sync,
        fp32_gradients=megatron,
        adapter=adapter,
        interconnect=wish.interconnect,
    )


def precision_of(
    wish: str | None, library: Library, gpu: Gpu, adapter: Adapter | None = None
) -> Precision:
    """Return the precision, where `bf16` and `fp16` mean what is usual with the library.

    torch keeps parameters in fp32 and casts them (`amp-bf16`), DeepSpeed and Megatron keep 16 bits
    with copies in fp32; adapters are trained beside weights in 16 bits that nothing changes.
    """
    wish = wish or ("bf16" if gpu.bf16_tflops is not None else "fp16")
    if wish == "bf16" and adapter is not None and library in TORCH:
        return Precision.PURE_BF16
    if wish in {"bf16", "fp16"} and library in TORCH:
        return Precision(f"amp-{wish}")
    return Precision(wish)


def ladder(wish: Wish) -> Sequence[Strategy]:
    """Return the strategies that are tried where none is asked for, simplest first."""
    if wish.gpus == 1:
        names = ["single", "zero2-offload", "zero3-offload", "zero3-nvme"]
    else:
        names = ["ddp", "zero1", "fsdp-shard-grad-op", "zero2", "fsdp", "zero3"]
        names += ["fsdp-hybrid"] if wish.gpus > wish.gpus_per_node else []
        names += ["megatron", "zero2-offload", "fsdp-offload", "zero3-offload", "zero3-nvme"]
    if wish.adapter is not None:
        plain = "qlora" if wish.adapter.quantized else "lora"
        names = [plain if name in {"single", "ddp"} else name for name in names]
    tried = [base_named(name) for name in names]
    if wish.offload is None:
        return tried
    return [strategy for strategy in tried if strategy.offload is wish.offload]
