"""What training programs do that the tables which they appear in do not say.

Those of KempnerForge, InternEvo's optimizer, Qwen's rank and llm-foundry's loss were read in their
code; the others are what recipes and pages of the programs say, or are inferred from what they
measured, and may be wrong for another release. None is a figure. A program that is not listed has
the usual ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterkit.estimate.setup import Checkpointing, Library, Loss, Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Defaults of one program; None where it has the usual ones."""

    loss: Loss | None = None
    compiled_loss: bool = False
    fp32_logits: bool = True
    loss_parallel: bool = True
    sequence_parallel: bool = True
    sequence_parallel_in_pipeline: bool = True
    fused_norms: bool | None = None
    checkpointing: Checkpointing | None = None
    """Where the table says `per recipe` or nothing."""
    full_finetune_optimizer: Optimizer | None = None
    """Of its recipe for one GPU, with the step in the backward pass."""
    step_copies: int | None = None
    fp32_copies: bool = False
    """Whether the optimizer has parameters in fp32 beside those in bf16, also under FSDP."""
    full_finetune_library: Library | None = None
    finetune_accumulation: int | None = None
    lora_rank: int = 16
    split_embedding: bool = True
    logs_rank_0: bool = False
    """Whether the memory that is published is that of rank 0, on the first stage of a pipeline."""
    pipeline_splits_batch: bool = False
    """Whether the micro batch of a pipeline is a part of the batch that the table gives."""


HABITS: Mapping[str, Habits] = {
    # distributed/tensor_parallel.py: each rank of a group has the whole embedding and gathers the
    # logits; no sequence parallelism in a pipeline. training/loss.py leaves logits in bf16.
    "KempnerForge": Habits(
        loss_parallel=False,
        fp32_logits=False,
        split_embedding=False,
        sequence_parallel_in_pipeline=False,
        logs_rank_0=True,
    ),
    # pipeline_parallel_microbatches is the number of stages; --training.compile takes the loss
    # with it since 2025.
    "torchtitan benchmarks/llama3_h100_2024": Habits(pipeline_splits_batch=True, step_copies=0),
    "torchtitan": Habits(pipeline_splits_batch=True, step_copies=0, compiled_loss=True),
    # recipes/configs/llama3_1/8B_*_single_device.yaml
    "torchtune": Habits(
        loss=Loss.CHUNKED,
        checkpointing=Checkpointing.FULL,
        full_finetune_optimizer=Optimizer.PAGED_ADAMW_8BIT,
        step_copies=0,
        lora_rank=8,
    ),
    # pretrain.py takes the loss of the logits as they are; finetune/full.py accumulates to 32.
    "litgpt": Habits(fp32_logits=False, step_copies=0, finetune_accumulation=8),
    # Not read but inferred: its figures have room for norms that keep what those of torch do.
    "nanotron": Habits(fused_norms=False),
    # hybrid_zero_optim.py keeps fp32 copies whatever shards the model, under torch 1.13; norms of
    # apex and the loss of flash-attn.
    "InternEvo": Habits(
        fp32_copies=True,
        step_copies=2,
        sequence_parallel=False,
        fused_norms=True,
        loss=Loss.COMPILED,
    ),
    # loss_fn: fused_crossentropy (flash-attn); DecoupledAdamW steps one parameter at a time.
    "llm-foundry": Habits(loss=Loss.COMPILED, step_copies=0),
    # README: fused layernorm, fused cross entropy.
    "TinyLlama": Habits(loss=Loss.COMPILED, fused_norms=True),
    # The rank that finetune.py has for LoRA.
    "QwenLM/Qwen": Habits(lora_rank=64, full_finetune_library=Library.DEEPSPEED),
}
"""By a part of the name of the source."""


def habits_of(source: str, known: Mapping[str, Habits] = HABITS) -> Habits:
    """Return the habits of the program that a source describes, as far as they are known."""
    return next((habits for name, habits in known.items() if name in source), Habits())


_LADDER = ("baseline", "packed", "compile", "chunk", "ckpt", "opt-in-bwd", "act offload", "8-bit")
"""torchtune's README switches these on one after the other and measures after each."""

_OTHER_WORDS = {
    "checkpointing": "ckpt",
    "optimizer in backward": "opt-in-bwd",
    "fuse": "opt-in-bwd",
    "activation offload": "act offload",
    "8bit": "8-bit",
}


def steps_of(strategy: str, note: str = "") -> tuple[str, ...]:
    """Return what is switched on in a row of a cumulative table; nothing for any other row.

    A note that is no more than `LoRA` or `QLoRA` is the name of the last steps of that table.
    """
    if note.lower() in {"lora", "qlora"}:
        return tuple(step for step in _LADDER if step not in {"opt-in-bwd", "8-bit"})
    _, cumulative, step = strategy.lower().partition("cumulative:")
    if not cumulative:
        return ()
    step = next((word for text, word in _OTHER_WORDS.items() if text in step), step)
    reached = (index for index, word in enumerate(_LADDER) if word in step)
    return _LADDER[: next(reached, 0) + 1]
