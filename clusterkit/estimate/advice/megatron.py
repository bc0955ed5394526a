"""A setup as arguments of Megatron-LM's `pretrain_gpt.py`, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from clusterkit.core.errors import UserError
from clusterkit.estimate.refusals import last_stage
from clusterkit.estimate.setup import (
    Checkpointing,
    Library,
    Loss,
    Optimizer,
    Precision,
    Setup,
    Sharding,
)

_RANKS = {
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "vpp": "--num-virtual-stages-per-pipeline-rank",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
}


def arguments_of(setup: Setup) -> tuple[str, ...]:
    """Return the arguments, without data, tokenizer and learning rate."""
    ranks = {flag: getattr(setup, name) for name, flag in _RANKS.items()}
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


def settings_of(arguments: Sequence[str], gpus: int) -> Mapping[str, Any]:
    """Return the fields of a `Setup` that arguments of Megatron-LM stand for."""
    given = dict(zip(arguments, (*arguments[1:], ""), strict=True))
    ranks = {name: _number(given, flag, 1) for name, flag in _RANKS.items()}
    micro = _number(given, "--micro-batch-size", 1)
    copies = max(gpus // (ranks["tp"] * ranks["pp"] * ranks["cp"]), 1)
    method = (given.get("--recompute-granularity"), given.get("--recompute-method"))
    return {
        "library": Library.MEGATRON,
        **ranks,
        "sharding": Sharding.OPTIMIZER if "--use-distributed-optimizer" in given else Sharding.NONE,
        "sequence_parallel": ranks["tp"] == 1 or "--sequence-parallel" in given,
        "seq": _number(given, "--seq-length", None),
        "micro_batch": micro,
        "accumulation": _number(given, "--global-batch-size", micro * copies) // (micro * copies),
        "precision": _read_precision(given),
        "optimizer": Optimizer.SGD if given.get("--optimizer") == "sgd" else Optimizer.ADAMW,
        "fp32_gradients": "--accumulate-allreduce-grads-in-fp32" in given,
        "checkpointing": {
            (None, None): Checkpointing.NONE,
            ("selective", None): Checkpointing.SELECTIVE,
            ("full", "block"): Checkpointing.ALTERNATE,
        }.get(method, Checkpointing.FULL),
        "flash_attention": given.get("--attention-backend") != "unfused",
        "loss": Loss.FUSED if "--cross-entropy-loss-fusion" in given else Loss.EAGER,
    }


def beyond_arguments(setup: Setup, arguments: Sequence[str]) -> Mapping[str, Any]:
    """Return the fields of `setup` that its arguments cannot say, and that are not as usual."""
    read = Setup(
        model=setup.model,
        gpu=setup.gpu,
        gpus=setup.gpus,
        gpus_per_node=setup.gpus_per_node,
        interconnect=setup.interconnect,
        **settings_of(arguments, setup.gpus),
    )
    return {
        field.name: getattr(setup, field.name)
        for field in fields(Setup)
        if getattr(read, field.name) != getattr(setup, field.name)
    }


def _number(given: Mapping[str, str], flag: str, default: int | None) -> int:
    text = given.get(flag, default)
    try:
        return int(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UserError(f"{flag} of Megatron-LM is {text!r}, no whole number") from None


def _read_precision(given: Mapping[str, str]) -> Precision:
    if "--fp8-format" in given:
        return Precision.FP8
    if "--fp16" in given:
        return Precision.FP16
    return Precision.BF16 if "--bf16" in given else Precision.FP32
