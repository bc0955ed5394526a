"""How long a GPU computes: matrix products, attention, everything bound by memory, launches.

Two counts of operations, for two questions. What MFU stands on (`needed_flops`) is 6 P + 12 L a d
s: forward 2, backward 4 for each parameter, and attention as if no mask halved it (PaLM,
arXiv:2204.02311 appendix B; the convention of llm-foundry, nanoGPT and of the published figures
that we score on). With adapters it is 4 P: frozen matrices pass gradients on, but get none.
What a GPU does (`Work`) leaves the look-up of embeddings out and counts half of the attention,
since a causal kernel skips the masked half.

A block takes the sum of four parts, none of which hides another: its products at a part of the
fastest product that was measured on such a GPU, attention at the rate of flash kernels, the bytes
that norms, activations and residuals move, and the head with the loss. A GPU that is fed by eager
kernels is never faster than the host launches them.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterkit.estimate import FACTS
from clusterkit.estimate.machines.gpus import Gpu
from clusterkit.estimate.machines.interconnects import pcie_gbs
from clusterkit.estimate.memory.states import gradient_wire_bytes, owned_params, params_per_rank
from clusterkit.estimate.results import Interval
from clusterkit.estimate.setup import (
    TORCH,
    Checkpointing,
    Compression,
    Library,
    Offload,
    Precision,
    Setup,
)
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


_HOPPER = "sm90"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Seconds that one GPU computes."""

    forward_s: float
    """Of one micro batch in the blocks of one stage."""
    backward_s: float
    optimizer_s: float
    """Of the optimizer's step, once per step."""
    launch_bound: bool
    """Whether the GPU waits for the host to launch kernels, rather than for its own units."""

    @property
    def micro_batch_s(self) -> float:
        """Seconds of one micro batch."""
        return self.forward_s + self.backward_s


def compute_of(setup: Setup) -> Compute:
    """Return how long a GPU of the slowest pipeline stage computes."""
    layers = setup.stage_layers
    tokens = setup.rank_tokens
    work = work_of(setup)
    block = tokens * (_products_s(setup, work) + _attention_s(setup, work) + _traffic_s(setup))
    block += _weights_s(setup, work)
    launches = _launches(setup) * FACTS["launch_s"]
    launch_bound, block = block < launches, max(block, launches)
    head = tokens * _head_s(setup, work)
    forward = block / work.passes
    return Compute(
        forward_s=layers * forward + head / 3,
        backward_s=layers * (block - forward) + head * 2 / 3,
        optimizer_s=_optimizer_s(setup),
        launch_bound=launch_bound,
    )


def _launches(setup: Setup) -> float:
    kernels = FACTS["compiled_kernels" if setup.compiled else "kernels"]
    if setup.model.experts:
        kernels += FACTS["expert_kernels"] * setup.model.experts // setup.ep
    return kernels * (1 + recomputed(setup).elementwise / 3)


def product_flops(setup: Setup) -> float:
    """Return the rate of matrix products that are wide enough, operations/s."""
    gpu = setup.gpu
    reached = gpu.architecture.products_of_ceiling
    if gpu.arch == _HOPPER:
        reached = min(reached * _fed(gpu) ** 0.5, FACTS["best_products"])
    return gpu.ceiling_tflops * 1e12 * reached * _of_precision(setup)


def _fed(gpu: Gpu) -> float:
    """Return how much its memory feeds a unit of a GPU, where that of an H100 is 1.

    Not less: cards with slower memory have lower clocks, too, and train no worse for their peak
    (torchtitan's runs on H100s of 500 W).
    """
    return max(1.0, gpu.memory_gbs / gpu.half_tflops / FACTS["h100_gbs_per_tflops"])


def _of_precision(setup: Setup) -> float:
    gpu, precision = setup.gpu, setup.precision
    if precision is Precision.FP8 and gpu.fp8_tflops is not None:
        megatron = setup.library is Library.MEGATRON
        return FACTS["fused_fp8_speedup" if megatron else "fp8_speedup"]
    if precision is Precision.FP32:
        return FACTS["tf32_of_bf16"] if gpu.has_bf16 else 1 / 8
    return 1.0


def _narrow(width: float) -> float:
    return 1 + FACTS["narrow_width"] / width


def _products_s(setup: Setup, work: Work) -> float:
    width = setup.model.hidden / setup.tp
    return work.block_products / setup.tp * _narrow(width) / product_flops(setup)


def _attention_s(setup: Setup, work: Work) -> float:
    gpu = setup.gpu
    reached = gpu.architecture.attention_of_peak
    if gpu.arch == _HOPPER:
        reached = min(reached * _fed(gpu), FACTS["best_attention"])
    rate = gpu.half_tflops * 1e12 * reached
    flops = work.block_attention / setup.tp
    if setup.flash_attention:
        return flops / rate
    # Each score passes the memory a dozen times, mask, softmax and dropout included; both halves.
    scores = setup.model.heads * setup.seq / setup.tp
    return 2 * flops / product_flops(setup) + scores * 2 * 12 / _memory(gpu)


def _memory(gpu: Gpu) -> float:
    return gpu.memory_gbs * 1e9 * FACTS["memory_of_peak"]


def _traffic_s(setup: Setup) -> float:
    """Return the seconds that a token spends in a block's operations that are bound by memory.

    Forward, in elements: 4 h for each norm and 3 h for each residual, 6 d for rotary positions, and
    5 f or 2 f for the activation of the MLP; backward twice that.
    """
    model = setup.model
    width = 14 * model.hidden / (setup.tp if setup.sequence_parallel else 1)
    divided = 6 * (model.heads + model.kv_heads) * model.head_dim
    divided += (5 if model.gated else 3) * active_ffn(model)
    elements = (width + divided / setup.tp) * (3 + recomputed(setup).elementwise)
    fused = setup.compiled or setup.library is Library.MEGATRON
    left = FACTS["fused_traffic"] if fused else 1
    return elements * setup.element_bytes * left / _memory(setup.gpu)


def _weights_s(setup: Setup, work: Work) -> float:
    """Return the seconds in which a block's weights are read, and their gradients written.

    QLoRA's are kept in 4 bits: every pass reads them so, and writes them in 16 for the product.
    """
    model, adapter = setup.model, setup.adapter
    held = (model.attention_params + model.mlp_params / setup.ep) / setup.tp
    moved = 2 * (work.passes + (1 if adapter is None else 0))
    if adapter is not None and adapter.quantized:
        moved += work.passes * (FACTS["nf4_bytes"] + 2)
    return held * moved / _memory(setup.gpu)


def _head_s(setup: Setup, work: Work) -> float:
    """Return the seconds of a token in head and loss, spread over the stages of a pipeline."""
    divided = setup.tp if setup.loss_parallel else 1
    products = work.head / divided * _narrow(setup.model.hidden) / product_flops(setup)
    traffic = setup.model.vocab * FACTS[f"loss_bytes_{setup.loss}"] / divided / _memory(setup.gpu)
    return (products + traffic) / setup.pp


def _optimizer_s(setup: Setup) -> float:
    pure = setup.precision is Precision.PURE_BF16
    traffic = FACTS["pure_optimizer_traffic" if pure else "optimizer_traffic"]
    return owned_params(setup) * traffic / _memory(setup.gpu)


def compressing_s(setup: Setup) -> Interval:
    """Return the seconds of a step in which what is sent is made smaller: a model, never measured.

    At least, the bytes that this reads and writes at the rate of the memory. ZeRO++: for each of P
    parameters and micro batch, with N ranks, n in a node: its 8 bits become 16 (3 bytes), its
    gradient 4 bits (2.5), which are summed (0.5); a rank quantizes its shard and stores the sum
    (5 / N), copies its part of the second copy (4 / n), and has the n-th part of the gradients to
    quantize, to read again and to sum (5 / n). Gradients of DDP, once: `compress_bytes_*` of
    facts.tsv. At most several times that (`quantize_worst`); likely is the geometric mean.
    """
    each, times = 0.0, 1
    if setup.compression is not Compression.NONE:
        each = FACTS[f"compress_bytes_{setup.compression}"]
    if setup.zeropp:
        each = 3 + 2.5 + 0.5 + 5 / setup.shard_ranks + (4 + 5) / setup.gpus_per_node
        times = setup.accumulation
    least = times * params_per_rank(setup) * each / _memory(setup.gpu)
    worst = FACTS["quantize_worst"]
    return Interval(low=least, likely=least * worst**0.5, high=least * worst)


def offload_s(setup: Setup) -> float:
    """Return the seconds that offloading adds to a step; nothing of it hides behind computing."""
    if setup.offload_optimizer is Offload.NONE and setup.offload_params is Offload.NONE:
        return 0.0
    held = owned_params(setup)
    on_node = held * min(setup.gpus, setup.gpus_per_node)
    # Pinned memory while every GPU of the node uses its slot: about half of what one alone gets
    # (DeepSpeed issues 1137 and 6695: 12 to 16 GB/s alone, 3 with 16 GPUs sharing).
    pcie = pcie_gbs(setup.gpu) / 2 * 1e9
    each = 2 if setup.precision is Precision.PURE_BF16 else 4
    seconds = 0.0
    if setup.offload_optimizer is not Offload.NONE:
        seconds += held * (gradient_wire_bytes(setup) + setup.element_bytes) / pcie
        seconds += on_node * FACTS["adam_tensors"] * each / (FACTS["host_adam_gbs"] * 1e9)
    if setup.offload_params is not Offload.NONE:
        seconds += 2 * setup.accumulation * held * setup.element_bytes / pcie
    if setup.offload_optimizer is Offload.NVME:
        state = on_node * FACTS["state_tensors"] * each
        seconds += state / (FACTS["nvme_read_gbs"] * 1e9) + state / (FACTS["nvme_write_gbs"] * 1e9)
    if setup.offload_params is Offload.NVME:
        weights = on_node * setup.element_bytes
        seconds += 2 * setup.accumulation * weights / (FACTS["nvme_read_gbs"] * 1e9)
    return seconds
