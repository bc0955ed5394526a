"""What training programs do that the tables which they appear in do not say.

Each habit was read in the program's own code or recipe; none is a figure that was fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterkit.estimate.setup import Checkpointing, Loss, Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Defaults of one program; None where it has the usual ones."""

    loss: Loss | None = None
    loss_parallel: bool = True
    checkpointing: Checkpointing | None = None
    """Where the table says `per recipe` or nothing."""
    full_finetune_optimizer: Optimizer | None = None
    """Of its recipe for one GPU, with the step in the backward pass."""
    lora_rank: int = 16
    pipeline_splits_batch: bool = False
    """Whether the micro batch of a pipeline is a part of the batch that the table gives."""


HABITS: Mapping[str, Habits] = {
    # models/llama/parallelize.py shards the head by DTensor, but the loss takes whole logits.
    "KempnerForge": Habits(loss_parallel=False),
    # pipeline_parallel_microbatches defaults to the number of stages (2024-12).
    "torchtitan": Habits(pipeline_splits_batch=True),
    # recipes/configs/llama3_1/8B_*_single_device.yaml
    "torchtune": Habits(
        loss=Loss.CHUNKED,
        checkpointing=Checkpointing.FULL,
        full_finetune_optimizer=Optimizer.PAGED_ADAMW_8BIT,
        lora_rank=8,
    ),
    # The rank that finetune.py has for LoRA.
    "QwenLM/Qwen": Habits(lora_rank=64),
}
"""By a part of the name of the source."""


def habits_of(source: str) -> Habits:
    """Return the habits of the program that a source describes."""
    return next((habits for name, habits in HABITS.items() if name in source), Habits())


_LADDER = ("baseline", "packed", "compile", "chunk", "ckpt", "opt-in-bwd", "act offload", "8-bit")
"""torchtune's README switches these on one after the other and measures after each."""

_OTHER_WORDS = {
    "checkpointing": "ckpt",
    "optimizer in backward": "opt-in-bwd",
    "fuse": "opt-in-bwd",
    "activation offload": "act offload",
    "8bit": "8-bit",
}


def steps_of(strategy: str) -> tuple[str, ...]:
    """Return what is switched on in a row of a cumulative table; nothing for any other row."""
    _, cumulative, step = strategy.lower().partition("cumulative:")
    if not cumulative:
        return ()
    step = next((word for text, word in _OTHER_WORDS.items() if text in step), step)
    reached = (index for index, word in enumerate(_LADDER) if word in step)
    return _LADDER[: next(reached, 0) + 1]
