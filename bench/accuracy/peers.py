"""What other estimators would say of a setup, by their formulas as coded, errors and all.

They are here to be compared with, on the same published figures: none of them is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clusterkit.estimate.results import GIB
from clusterkit.estimate.setup import FSDP, Checkpointing, Library, Offload, Setup, Sharding

Peer = Callable[[Setup], float | None]
"""Returns bytes of a GPU, or None for what it does not cover."""
_BUFFER_FACTOR = 1.5
_STAGES: Mapping[Sharding, int] = {
    Sharding.NONE: 0,
    Sharding.OPTIMIZER: 1,
    Sharding.GRADIENTS: 2,
    Sharding.FULL: 3,
    Sharding.HYBRID: 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What DeepSpeed's functions return: bytes of one GPU, and of a node's RAM."""

    gpu: float
    cpu: float


def deepspeed_zero2(
    params: float, *, gpus_per_node: int, nodes: int, offload: bool = False
) -> Need:
    """Return what `estimate_zero2_model_states_mem_needs` does.

    Source: deepspeed/runtime/zero/stage_1_and_2.py.
    """
    ranks = gpus_per_node * nodes
    if offload:
        return Need(gpu=2 * params, cpu=params * max(4 * ranks, 16) * _BUFFER_FACTOR)
    cpu = params * 4 * gpus_per_node * _BUFFER_FACTOR
    return Need(gpu=2 * params + int(18 * params / ranks), cpu=cpu)


def deepspeed_zero3(
    params: float,
    largest: float,
    *,
    gpus_per_node: int,
    nodes: int,
    offload_optimizer: bool = False,
    offload_params: bool = False,
) -> Need:
    """Return what `estimate_zero3_model_states_mem_needs` does, with `zero_init`.

    `largest` counts the parameters of the largest module that has no others in it. Source:
    deepspeed/runtime/zero/stage3.py.
    """
    ranks, layer = gpus_per_node * nodes, 4 * largest
    if not offload_optimizer:
        cpu = layer * gpus_per_node * _BUFFER_FACTOR
        return Need(gpu=layer + int(18 * params / ranks), cpu=cpu)
    if offload_params:
        return Need(gpu=layer, cpu=params * 18 / nodes * _BUFFER_FACTOR)
    cpu = params * 16 / nodes * _BUFFER_FACTOR
    return Need(gpu=layer + int(2 * params / ranks), cpu=cpu)


def deepspeed(
    setup: Setup,
    *,
    zero2: Callable[..., Need] = deepspeed_zero2,
    zero3: Callable[..., Need] = deepspeed_zero3,
) -> float | None:
    """Return what DeepSpeed's functions, or these, say of a setup they are for: states alone."""
    if setup.library is not Library.DEEPSPEED or setup.adapter is not None:
        return None
    model, nodes = setup.model, setup.nodes
    per_node = setup.gpus // nodes
    optimizer = setup.offload_optimizer is not Offload.NONE
    if setup.sharding is Sharding.GRADIENTS:
        return zero2(model.params, gpus_per_node=per_node, nodes=nodes, offload=optimizer).gpu
    if setup.sharding is not Sharding.FULL:
        return None
    return zero3(
        model.params,
        model.vocab * model.hidden,
        gpus_per_node=per_node,
        nodes=nodes,
        offload_optimizer=optimizer,
        offload_params=setup.offload_params is not Offload.NONE,
    ).gpu


def megatron(setup: Setup) -> float | None:
    """Return what Megatron-LM's theoretical_memory_usage.py says (d98e8a6)."""
    if setup.adapter is not None or setup.offload_optimizer is not Offload.NONE:
        return None
    model = setup.model
    hidden, ratio = model.hidden, model.kv_heads / model.heads
    gate = 1.5 if model.gated else 1.0
    blocks: float = 2 * model.layers * hidden**2
    blocks *= 1 + ratio + model.ffn / hidden * gate + 2 / hidden + 1 / (model.layers * hidden)
    embedding = hidden * model.vocab
    both = embedding * (2 if not model.tied and setup.pp == 1 else 1)
    shard = (blocks / setup.pp + both) / setup.tp
    each = 6 + 12 / setup.dp if setup.sharding is not Sharding.NONE else 18.0
    return shard * each + _megatron_activations(setup)


def _megatron_activations(setup: Setup) -> float:
    model, pp = setup.model, setup.pp
    tokens = setup.seq * setup.micro_batch
    kept = tokens * model.hidden * (18 + 4 * model.ffn / model.hidden) * model.layers
    kept += 8 * tokens * pp + tokens * model.hidden * pp
    if setup.vpp > 1:
        kept *= 1 + (pp - 1) / (pp * setup.vpp)
    elif pp > 1:
        kept *= min(1, setup.accumulation / pp)
    if pp == 1:
        kept += tokens * model.hidden * 4 * (1 + model.vocab / model.hidden)
    return kept / setup.tp


def eleuther(setup: Setup) -> float | None:
    """Return what EleutherAI/cookbook's calc_transformer_mem.py says (827ee3b)."""
    if setup.adapter is not None or setup.offload_optimizer is not Offload.NONE:
        return None
    model, stage = setup.model, _STAGES[setup.sharding]
    hidden, layers = model.hidden, model.layers
    params: float = 2 * model.vocab * hidden + hidden * setup.seq + 8 * hidden * layers + 2 * hidden
    params += int(2 * (1 + model.kv_heads / model.heads) * layers * hidden**2)
    params += (3 if model.gated else 2) * layers * hidden * model.ffn
    weights = 2 * params / (setup.tp * setup.pp) / (setup.gpus if stage == 3 else 1)
    gradients = 4 * params / (setup.gpus if stage >= 2 else 1)
    optimizer = 12 * params / (setup.gpus if stage >= 1 else 1)
    buckets = (1e9 if stage else 0) + (2e9 if stage == 3 else 0)
    tokens = setup.seq * setup.micro_batch
    inner = 34.0
    if setup.checkpointing is Checkpointing.NONE:
        inner += 5 * model.heads * setup.seq / hidden
    activations = tokens * hidden * layers * inner
    return weights + gradients + optimizer + buckets + activations + 5 * GIB


_KEPT_PART = {
    Checkpointing.NONE: 1.0,
    Checkpointing.SELECTIVE: 0.6,
    Checkpointing.ALTERNATE: 0.6,
    Checkpointing.FULL: 0.2,
}


def gpu_mem_calculator(setup: Setup) -> float | None:
    """Return what George614/gpu-mem-calculator says (core/formulas.py, engines)."""
    if setup.adapter is not None or setup.offload_optimizer is not Offload.NONE:
        return None
    model, ranks = setup.model, setup.dp
    params = model.params / (setup.tp * setup.pp)
    stage = _STAGES[setup.sharding]
    if setup.library in FSDP and stage == 3:
        states = 4 * model.block_params / setup.tp + 20 * params / ranks
    else:
        by_stage = (
            16 * params,
            4 * params + 12 * params / ranks,
            2 * params + 14 * params / ranks,
            0.4 * params + 16 * params / ranks,
        )
        states = by_stage[stage]
    kept = 16 * setup.micro_batch * setup.seq * model.hidden * model.layers / setup.tp
    return 1.2 * (states + kept * _KEPT_PART[setup.checkpointing])


PEERS: Mapping[str, Peer] = {
    "DeepSpeed's functions": deepspeed,
    "Megatron's formula": megatron,
    "EleutherAI's calculator": eleuther,
    "gpu-mem-calculator": gpu_mem_calculator,
}
"""By name."""
