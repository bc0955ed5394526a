"""What was published, as setups: which model, machines and strategy a row of a table describes.

A row that says too little is `Unused` and says why. What a row leaves open and its program decides
comes from `habits`; what had to be assumed beyond that stands in `model.assumed`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clusterkit.core.errors import UserError
from clusterkit.estimate.machines.gpus import Gpu, gpu_named
from clusterkit.estimate.setup import (
    TORCH,
    Adapter,
    Checkpointing,
    Library,
    Loss,
    Precision,
    Setup,
    Sharding,
)

from .habits import HABITS, Habits, habits_of, steps_of
from .notation import (
    UNSAID,
    Strategy,
    checkpointing_of,
    is_compiled,
    loss_of,
    optimizer_of,
    pairs_of,
    precision_of,
    strategy_of,
    whole_number,
)
from .truth_model import TooLittle, model_of
from .truth_table import Row, read_rows

__all__ = ["Row", "Unused", "read_rows", "setup_of"]

_FILLED = 8
"""Micro batches for each stage of a pipeline, where none are given: one that is kept busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused:
    """A row that says too little, and what it lacks."""

    reason: str


def setup_of(row: Row, known: Mapping[str, Habits] = HABITS) -> Setup | Unused:
    """Return what a row describes as a setup, or why it cannot be one.

    `known` are the habits of programs that complete it.
    """
    if row.flaw:
        return Unused(reason=row.flaw)
    try:
        return _setup(row, habits_of(row.source, known))
    except TooLittle as missing:
        return Unused(reason=str(missing))


def _setup(row: Row, habits: Habits) -> Setup:
    strategy = strategy_of(row.strategy, precision=row.precision)
    if strategy is None:
        raise TooLittle(f"no strategy: {row.strategy!r}" if row.strategy else "no strategy")
    layout = {key: whole_number(text) for key, text in pairs_of(row.layout).items()}
    tp, pp, cp = (max(1, layout.get(key) or 1) for key in ("tp", "pp", "cp"))
    data = _data_ranks(layout)
    if "TP+PP" in row.strategy and "tp" in layout and "pp" not in layout:
        raise TooLittle("no number of pipeline stages")
    gpus = row.n_gpus or (data or 0) * tp * pp * cp
    if not gpus:
        raise TooLittle("no number of GPUs")
    if gpus % (tp * pp * cp):
        raise TooLittle(f"{gpus} GPUs are not a multiple of tp * pp * cp = {tp * pp * cp}")
    group = _shard_group(strategy, layout, gpus, data=gpus // (tp * pp * cp), cp=cp)
    copies = strategy.sharding is Sharding.FULL and (layout.get("dp_replicate") or 1) > 1
    shape = model_of(row)
    setup = Setup(
        model=shape,
        gpu=_gpu_of(row),
        gpus=gpus,
        gpus_per_node=_gpus_per_node(gpus, layout.get("nodes")),
        library=strategy.library,
        sharding=Sharding.HYBRID if copies else strategy.sharding,
        shard_group=group,
        tp=tp,
        pp=pp,
        vpp=layout.get("vpp") or layout.get("vp") or strategy.chunks,
        cp=cp,
        ep=layout.get("ep") or 1,
        sequence_parallel=_sequence_parallel(row, strategy, layout),
        seq=row.seq or _default_seq(row),
        precision=_precision(row, strategy.library, habits),
        flash_attention=strategy.flash_attention,
        compiled=is_compiled(row.precision) or "+compile" in row.strategy,
        offload_optimizer=strategy.offload_optimizer,
        offload_params=strategy.offload_params,
        fp32_gradients="fp32 grad" in row.precision,
    )
    return _with_habits(_with_batch(setup, row, layout, habits), row, strategy, habits)


def _gpu_of(row: Row) -> Gpu:
    name = row.gpu.strip()
    if name.lower() in {"any", ""} and not row.measured:
        return gpu_named("A100-SXM4-80GB")
    try:
        return gpu_named(name)
    except UserError:
        raise TooLittle(f"no known GPU: {name or 'none is given'}") from None


def _gpus_per_node(gpus: int, nodes: int | None) -> int:
    if nodes and gpus % nodes == 0:
        return gpus // nodes
    return min(gpus, 8)


def _data_ranks(layout: Mapping[str, int | None]) -> int | None:
    """Return the data-parallel ranks; torchtitan gives those that shard, and copies of them."""
    shards = layout.get("dp_shard")
    if shards:
        return shards * (layout.get("dp_replicate") or 1)
    return layout.get("dp") or layout.get("fsdp")


def _shard_group(
    strategy: Strategy, layout: Mapping[str, int | None], gpus: int, *, data: int, cp: int
) -> int | None:
    copies = layout.get("dp_replicate") or 1
    if copies > 1:
        shards = layout.get("dp_shard") or data // copies
        if shards * copies != data:
            raise TooLittle(f"dp_shard * dp_replicate = {shards * copies} is not {data}")
        return shards * cp
    group = strategy.shard_group or layout.get("zero1")
    if strategy.sharding is Sharding.HYBRID and group is None:
        return _gpus_per_node(gpus, layout.get("nodes"))
    return group


def _default_seq(row: Row) -> int:
    if row.measured:
        raise TooLittle("no sequence length")
    return 2048


def _sequence_parallel(row: Row, strategy: Strategy, layout: Mapping[str, int | None]) -> bool:
    if "sp" in layout:
        return layout["sp"] is not None
    return strategy.sequence_parallel or "SP" in row.act_ckpt


def _precision(row: Row, library: Library, habits: Habits) -> Precision:
    precision = precision_of(row.precision)
    torch = library in TORCH
    if not torch:
        return precision
    if habits.fp32_copies:
        return precision
    words = f"{row.strategy} {row.note}".lower()
    if "bf16 model" in words or "full-rank" in words or "lora" in words:
        return Precision.PURE_BF16
    # FSDP's mixed precision and autocast keep fp32 parameters; nobody holds a second copy.
    mixed = {Precision.BF16: Precision.AMP_BF16, Precision.FP16: Precision.AMP_FP16}
    return mixed.get(precision, precision)


def _with_batch(setup: Setup, row: Row, layout: Mapping[str, int | None], habits: Habits) -> Setup:
    """Return `setup` with the micro batch and how many make a step, as far as the row tells."""
    ranks = setup.dp
    total, steps, micro = layout.get("gbs"), layout.get("gas"), row.micro_batch or None
    if micro is None:
        if total is None or total % ranks:
            if row.measured:
                raise TooLittle("no micro batch")
            micro = 1
        else:
            micro = max(1, total // ranks // (steps or total // ranks))
        assumed = (*setup.model.assumed, f"a micro batch of {micro}")
        setup = replace(setup, model=replace(setup.model, assumed=assumed))
    if steps is None and total is not None:
        steps = max(1, total // (ranks * micro))
    if steps is None and setup.pp > 1 and habits.pipeline_splits_batch:
        steps = math.gcd(setup.pp, micro)
        micro //= steps
    elif steps is None and setup.pp > 1:
        steps = _FILLED * setup.pp
        assumed = (*setup.model.assumed, f"{steps} micro batches in a step")
        setup = replace(setup, model=replace(setup.model, assumed=assumed))
    return replace(setup, micro_batch=micro, accumulation=steps or 1)


def _with_habits(setup: Setup, row: Row, strategy: Strategy, habits: Habits) -> Setup:
    """Return `setup` with what the row's words and its program's habits say beside numbers."""
    if "micro batch" in row.note and "default" in row.note:
        raise TooLittle("its micro batch is a guess of the table")
    words = f"{row.strategy} {row.note}"
    steps = steps_of(row.strategy, row.note)
    if steps and "packed" not in steps:
        raise TooLittle("sequences of unknown lengths: they are not packed")
    one_gpu_recipe = "full finetune" in row.strategy and setup.gpus == 1
    optimizer = habits.full_finetune_optimizer if one_gpu_recipe else None
    compiled = setup.compiled or "compile" in row.note or "compile" in steps
    library = habits.full_finetune_library if one_gpu_recipe else None
    more = habits.finetune_accumulation if "finetune" in row.strategy else None
    said = checkpointing_of(row.act_ckpt)
    if said is None and row.act_ckpt.lower() not in UNSAID:
        raise TooLittle(f"nothing known is computed again: {row.act_ckpt!r}")
    checkpointing = said or habits.checkpointing
    if checkpointing is None:
        assumed = (*setup.model.assumed, "that nothing is computed again")
        setup = replace(setup, model=replace(setup.model, assumed=assumed))
    return replace(
        setup,
        library=library or setup.library,
        accumulation=more if more and "gas" not in row.layout else setup.accumulation,
        checkpointing=checkpointing or Checkpointing.NONE,
        loss=_loss(words, steps, habits, compiled=compiled),
        fp32_logits=habits.fp32_logits,
        loss_parallel=habits.loss_parallel,
        split_embedding=habits.split_embedding,
        sequence_parallel=setup.sequence_parallel
        and habits.sequence_parallel
        and (setup.pp == 1 or habits.sequence_parallel_in_pipeline),
        fused_norms=habits.fused_norms,
        step_copies=habits.step_copies,
        bucket_view="thunder" in row.precision,
        optimizer=optimizer or optimizer_of(words),
        optimizer_in_backward=optimizer is not None or "opt-in-bwd" in steps,
        offload_activations="act offload" in steps,
        compiled=compiled,
        no_sync="no_sync" in row.note and setup.accumulation > 1,
        adapter=_adapter(strategy, habits),
    )


def _loss(words: str, steps: Sequence[str], habits: Habits, *, compiled: bool) -> Loss:
    if steps:
        return Loss.CHUNKED if "chunk" in steps else Loss.EAGER
    usual = Loss.COMPILED if compiled and habits.compiled_loss else Loss.EAGER
    return loss_of(words) or habits.loss or usual


def _adapter(strategy: Strategy, habits: Habits) -> Adapter | None:
    if not strategy.lora:
        return None
    return Adapter(
        rank=habits.lora_rank, quantized=strategy.quantized, on_embeddings=strategy.embeddings
    )
