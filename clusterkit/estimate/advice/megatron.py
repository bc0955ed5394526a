"""A setup as arguments of Megatron-LM's `pretrain_gpt.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from clusterkit.estimate.refusals import last_stage
from clusterkit.estimate.setup import (
    Checkpointing,
    Loss,
    Optimizer,
    Precision,
    Setup,
    Sharding,
)

RANKS = {
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "vpp": "--num-virtual-stages-per-pipeline-rank",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
}


_SAID = frozenset(
    {"model", "gpu", "gpus", "gpus_per_node", "interconnect", "library", "sharding", "seq"}
    | {"sequence_parallel", "micro_batch", "accumulation", "precision", "optimizer", "loss"}
    | {"fp32_gradients", "checkpointing", "flash_attention", *RANKS}
)
"""Fields that the line says, for all that Megatron has."""


def arguments_of(setup: Setup) -> tuple[str, ...]:
    """Return the arguments, without data, tokenizer and learning rate."""
    ranks = {flag: getattr(setup, name) for name, flag in RANKS.items()}
    sharded = setup.sharding is Sharding.OPTIMIZER
    overlap = ("--overlap-grad-reduce", "--overlap-param-gather")
    return (
        *_model(setup),
        *_words({flag: ranks for flag, ranks in ranks.items() if ranks > 1}),
        *_uneven(setup),
        *(("--sequence-parallel",) if setup.tp > 1 and setup.sequence_parallel else ()),
        *_words(
            {
                "--seq-length": setup.seq,
                "--micro-batch-size": setup.micro_batch,
                "--global-batch-size": setup.global_batch,
                "--optimizer": "sgd" if setup.optimizer is Optimizer.SGD else "adam",
            }
        ),
        *(("--use-distributed-optimizer", *overlap) if sharded else ()),
        *_precision(setup.precision),
        *(("--accumulate-allreduce-grads-in-fp32",) if setup.fp32_gradients else ()),
        *_recomputation(setup),
        *("--attention-backend", "flash" if setup.flash_attention else "unfused"),
        *(("--cross-entropy-loss-fusion",) if setup.loss is Loss.FUSED else ()),
    )


def _words(options: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(word for flag, value in options.items() for word in (flag, str(value)))


def _model(setup: Setup) -> tuple[str, ...]:
    model = setup.model
    sizes: dict[str, object] = {
        "--num-layers": model.layers,
        "--hidden-size": model.hidden,
        "--ffn-hidden-size": model.ffn,
        "--num-attention-heads": model.heads,
        "--kv-channels": model.head_dim,
        "--max-position-embeddings": max(model.max_seq or 0, setup.seq),
        "--position-embedding-type": "learned_absolute" if model.learned_positions else "rope",
        "--normalization": "LayerNorm" if model.biases else "RMSNorm",
    }
    if model.kv_heads != model.heads:
        sizes["--num-query-groups"] = model.kv_heads
    if model.experts:
        sizes["--num-experts"] = model.experts
        sizes["--moe-router-topk"] = model.active_experts
    return (
        *_words(sizes),
        *(("--group-query-attention",) if model.kv_heads != model.heads else ()),
        *(("--swiglu",) if model.gated else ()),
        *(() if model.biases else ("--disable-bias-linear",)),
        *(("--add-qkv-bias",) if model.qkv_bias else ()),
        *(() if model.tied else ("--untie-embeddings-and-output-weights",)),
    )


def _uneven(setup: Setup) -> tuple[str, ...]:
    if setup.pp == 1 or setup.model.layers % setup.pp == 0:
        return ()
    return ("--decoder-last-pipeline-num-layers", str(last_stage(setup)))


def _precision(precision: Precision) -> tuple[str, ...]:
    return {
        Precision.FP32: (),
        Precision.FP16: ("--fp16",),
        Precision.FP8: ("--bf16", "--fp8-format", "hybrid"),
    }.get(precision, ("--bf16",))


def _recomputation(setup: Setup) -> tuple[str, ...]:
    if setup.checkpointing is Checkpointing.NONE:
        return ()
    if setup.checkpointing is Checkpointing.SELECTIVE:
        return ("--recompute-granularity", "selective")
    blocks = setup.model.layers // setup.pp // 2
    return (
        *("--recompute-granularity", "full"),
        *(
            ("--recompute-method", "uniform", "--recompute-num-layers", "1")
            if setup.checkpointing is Checkpointing.FULL
            else ("--recompute-method", "block", "--recompute-num-layers", str(blocks))
        ),
    )


def beyond_arguments(setup: Setup) -> Mapping[str, Any]:
    """Return the fields of `setup` that arguments cannot say, and that are not as usual."""
    unsaid = {
        field.name: getattr(setup, field.name)
        for field in fields(Setup)
        if field.name not in _SAID and getattr(setup, field.name) != field.default
    }
    if setup.loss not in {Loss.EAGER, Loss.FUSED}:
        unsaid["loss"] = setup.loss
    if setup.tp == 1 and not setup.sequence_parallel:
        unsaid["sequence_parallel"] = False
    return unsaid
