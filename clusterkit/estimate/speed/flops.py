"""Operations: what a model needs for a token, and what a strategy computes again.

Two counts, for two questions. What MFU stands on (`needed_flops`) is 6 P + 12 L a d s: forward 2,
backward 4 for each parameter, and attention as if no mask halved it (PaLM, arXiv:2204.02311
appendix B; the convention of llm-foundry, nanoGPT and of the published figures that we score on).
With adapters it is 4 P: frozen matrices pass gradients on, but get none.
What a GPU does (`Work`) leaves the look-up of embeddings out and counts half of the attention,
since a causal kernel skips the masked half.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterkit.estimate.facts import FACTS
from clusterkit.estimate.setup import TORCH, Checkpointing, Setup
from clusterkit.estimate.shapes import ModelShape


def model_flops(model: ModelShape, seq: int) -> float:
    """Return the operations of one token, forward and backward, as MFU counts them."""
    return 6 * model.active_params + 12 * model.layers * attention_width(model) * seq


def needed_flops(setup: Setup) -> float:
    """Return the operations of one token that the strategy cannot do without, as MFU counts them.

    Those of `model_flops`, less the gradients of weights that adapters leave as they are.
    """
    frozen = setup.model.active_params if setup.adapter is not None else 0
    return model_flops(setup.model, setup.seq) - 2 * frozen


def attention_width(model: ModelShape) -> int:
    """Return the width of all heads together; `hidden` in most models."""
    return model.heads * model.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a GPU computes for one token of a model, before it is divided among GPUs."""

    block_products: float
    """Operations of the products of one block, with what is computed again."""
    block_attention: float
    """Operations of its attention, the masked half left out."""
    head: float
    """Operations of the head."""
    passes: float
    """Products of a block over those of its forward pass: 3, and up to 4 where that runs again."""


def work_of(setup: Setup) -> Work:
    """Return the operations of a token in one block and in the head."""
    model, again = setup.model, recomputed(setup)
    # Frozen weights get no gradient: with adapters, the backward pass is as long as the forward.
    trained = 1 if setup.adapter is not None else 2
    block = block_matrices(model)
    passes = 1 + trained + again.products
    attention = 2 * attention_width(model) * setup.seq
    return Work(
        block_products=2 * block * passes,
        block_attention=attention * (1 + FACTS["attention_backward"] + again.attention),
        head=2 * (1 + trained) * model.vocab * model.hidden,
        passes=passes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """What of a forward pass runs again, as a part of it."""

    products: float
    attention: float
    elementwise: float


def recomputed(setup: Setup) -> Recomputed:
    """Return what checkpointing computes again.

    torch's non-reentrant checkpoint (`early_stop`) leaves a block as soon as every tensor that
    the backward pass needs is there again: the last matrix of the MLP never runs twice. Selective
    checkpointing keeps every other product in torch, and repeats attention alone in Megatron.
    """
    if setup.checkpointing is Checkpointing.NONE:
        return Recomputed(products=0, attention=0, elementwise=0)
    torch_own = setup.library in TORCH
    if setup.checkpointing in {Checkpointing.FULL, Checkpointing.ALTERNATE}:
        part = 1.0 if setup.checkpointing is Checkpointing.FULL else 0.5
        last = setup.model.hidden * active_ffn(setup.model) / block_matrices(setup.model)
        products = part * (1 - last if torch_own else 1)
        return Recomputed(products=products, attention=part, elementwise=part)
    if torch_own:
        return Recomputed(products=0.5, attention=0, elementwise=1)
    return Recomputed(products=0, attention=0 if setup.flash_attention else 1, elementwise=0)


def block_matrices(model: ModelShape) -> float:
    """Return the parameters of a block that multiply a token: those of its active experts."""
    dense = model.dense_layers if model.experts else 0
    inner = model.active_params - model.embedding_params - model.head_params
    shape = inner / model.layers
    return shape if dense or model.experts else model.attention_params + model.mlp_params


def active_ffn(model: ModelShape) -> int:
    """Return the width of what a token meets in the MLP of a block."""
    return model.ffn * max(1, model.active_experts) + model.shared_ffn
