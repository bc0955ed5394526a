"""What blocks and the loss keep for the backward pass, in bytes, in closed form.

A block is counted by the tensors that its operators save, in 16 bits (a token of width h takes
2 h bytes). For GPT blocks that gives the 34 s b h of Korthikanti et al. (arXiv:2205.05198), for
Llama blocks the 53 h (Llama 3.1 8B) and 49.5 h (Llama 2 7B) that a trace of them gives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from clusterkit.estimate import FACTS
from clusterkit.estimate.setup import FSDP, TORCH, Checkpointing, Library, Loss, Precision, Setup

_HALF = 2
_AUTOCAST = frozenset({Precision.AMP_BF16, Precision.AMP_FP16, Precision.FP8})


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What one block keeps for one token, in bytes, by what tensor parallelism divides."""

    norms: float
    """Inputs and outputs of norms, dropout masks: divided with sequence parallelism only."""
    attention: float
    products: float
    """Everything inside the MLP."""
    scores: float
    """Attention scores, where they are materialised: they grow with the sequence."""

    def of_rank(self, setup: Setup) -> float:
        """Return the bytes on one of `tp` ranks."""
        inner = (self.attention + self.products + self.scores) / setup.tp
        return inner + self.norms / (setup.tp if setup.sequence_parallel else 1)


def saved_of(setup: Setup) -> Saved:
    """Return what one block keeps for one token when nothing is computed again."""
    model, width = setup.model, setup.element_bytes
    hidden = model.hidden
    query, key = model.heads * model.head_dim, _kept_kv_heads(setup) * model.head_dim
    attention = width * (2 * query + 2 * key)
    scores = 0.0 if setup.flash_attention else 5.0 * model.heads * setup.seq / setup.cp
    stream = _stream(setup)
    if model.saved_bytes_per_token is not None and width == _HALF:
        norms = float((stream + width) * model.norms * hidden)
        products = max(0.0, model.saved_bytes_per_token - norms - attention)
        return Saved(norms=norms, attention=attention, products=products, scores=scores)
    if model.gated:
        # One kernel keeps input and output; torch's operators, the input and its normed copy in
        # fp32 beside the output.
        each = stream + width if _fused_norms(setup) else 4 + 4 + width
        norms = float(max(model.norms, 1) * each * hidden)
        if stream != width:
            norms += FACTS["extra_casts"] * width * hidden
    else:
        # Inputs and outputs of two LayerNorms, and the masks of two dropouts, a byte each.
        norms = hidden * (2 * (stream + width) + (0.0 if setup.flash_attention else 2.0))
    return Saved(norms=norms, attention=attention, products=_mlp(setup, width), scores=scores)


def _stream(setup: Setup) -> int:
    """Return the bytes of a number that goes from block to block.

    Under autocast the embedding is in fp32, and whatever is added to it; FSDP casts it as well.
    """
    alone = setup.library is Library.DDP and setup.precision in _AUTOCAST
    return 4 if alone else setup.element_bytes


def _kept_kv_heads(setup: Setup) -> int:
    """Return the heads of keys that attention keeps: without a compiler, torch repeats them."""
    repeats = setup.library in TORCH and not setup.compiled and setup.loss is not Loss.FUSED
    return setup.model.heads if repeats else setup.model.kv_heads


def _fused_norms(setup: Setup) -> bool:
    if setup.fused_norms is not None:
        return setup.fused_norms
    return setup.compiled or setup.loss is Loss.FUSED or setup.library is Library.MEGATRON


def _mlp(setup: Setup, width: int) -> float:
    model = setup.model
    # Gate, value, activated gate and their product; or input and output of the activation.
    tensors = 4 if model.gated else 2
    if not model.experts:
        return tensors * width * model.ffn
    routed = model.active_experts * (tensors * width * model.ffn + 2 * width * model.hidden)
    shared = tensors * width * model.shared_ffn
    if not model.dense_layers:
        return routed + shared
    dense = min(model.dense_layers, model.layers) / model.layers
    return (1 - dense) * (routed + shared) + dense * tensors * width * model.dense_ffn


def kept_per_token(setup: Setup) -> float:
    """Return the bytes that one block keeps between its passes, for one token on one rank."""
    saved, boundary = saved_of(setup), _boundary(setup)
    match setup.checkpointing:
        case Checkpointing.FULL:
            return boundary
        case Checkpointing.ALTERNATE:
            return (saved.of_rank(setup) + boundary) / 2
        case Checkpointing.SELECTIVE:
            return _selective(setup, saved)
    return saved.of_rank(setup)


def _boundary(setup: Setup) -> float:
    """Return the bytes of the input of a block: one hidden state."""
    part = setup.tp if setup.sequence_parallel else 1
    return _stream(setup) * setup.model.hidden / part


def _selective(setup: Setup, saved: Saved) -> float:
    """Return what selective recomputation keeps: Megatron's all but scores, torch's some products.

    torchtitan keeps every second matrix product and the output of attention (its policy
    `selective_ac_option = "op"`): of query, value, gate and down projection.
    """
    if setup.library not in FSDP:
        return replace(saved, scores=0.0).of_rank(setup)
    model, width = setup.model, setup.element_bytes
    query, key = model.heads * model.head_dim, model.kv_heads * model.head_dim
    inner = 2 * query + key + max(1, model.active_experts) * model.ffn
    return _boundary(setup) + width * inner / setup.tp + _boundary(setup)


def working_per_token(setup: Setup) -> float:
    """Return the bytes of one block while its backward pass runs, beyond what it kept.

    What is computed again, and the gradients of its output and of the MLP's widest tensor; with
    sequence parallelism, also the whole hidden state that a product gathers, and its gradient.
    """
    width, model = setup.element_bytes, setup.model
    again = max(0.0, saved_of(setup).of_rank(setup) - kept_per_token(setup))
    gradients = width * (model.hidden + max(1, model.active_experts) * model.ffn / setup.tp)
    gathered = 2 * width * model.hidden if setup.tp > 1 else 0.0
    return again + gradients + gathered


def in_flight(setup: Setup, *, first: bool) -> float:
    """Return how many micro batches wait for their backward pass on a stage of the pipeline.

    1F1B: as many as there are stages behind it; interleaving adds (p - 1) / (p v) of that
    (arXiv:2205.05198, section 4.2.3).
    """
    if setup.pp == 1 or not first:
        return 1.0
    if setup.vpp > 1:
        return min(setup.pp * (1 + (setup.pp - 1) / (setup.pp * setup.vpp)), setup.accumulation)
    return min(setup.pp, setup.accumulation)


def logits_of(setup: Setup) -> float:
    """Return the logits of a micro batch on one rank."""
    divided = setup.tp if setup.loss_parallel else 1
    return setup.rank_tokens * setup.model.vocab / divided


def bytes_per_logit(setup: Setup) -> float:
    """Return the bytes of each logit where the loss needs most."""
    if setup.loss is Loss.FUSED and setup.library is Library.MEGATRON:
        # --cross-entropy-loss-fusion joins only the loss (fused_cross_entropy.py): logits as they
        # come, their softmax in fp32, and the gradient.
        return 4.0 + 2 * setup.element_bytes
    if setup.loss is Loss.FUSED:
        return 0.0
    eager = _eager_loss(setup)
    if setup.loss is Loss.COMPILED:
        return 4.0  # The logits and their gradient, in 16 bits.
    if setup.loss is Loss.CHUNKED:
        return 2.0 + (4.0 if setup.compiled else eager - 2) / FACTS["loss_chunks"]
    return eager


def _eager_loss(setup: Setup) -> float:
    """Return the bytes of a logit of `cross_entropy`: logits, log-softmax and two gradients."""
    if setup.precision is Precision.FP32:
        return 16.0
    if not setup.fp32_logits:
        return 8.0
    if setup.library is Library.MEGATRON:
        # Logits in 16 bits, in fp32, and their softmax, which becomes the gradient in its place.
        return 10.0
    if setup.loss_parallel and setup.tp > 1 and setup.library in FSDP:
        # torch.distributed.tensor.parallel.loss: one more copy in fp32 in its backward pass.
        return 18.0
    return 14.0
