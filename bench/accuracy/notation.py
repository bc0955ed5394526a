"""How published tables write a strategy, a precision, a layout: read into the words of a `Setup`.

No two sources write alike, so everything here looks for words it knows in lower case and lets the
rest be: a text that was never seen before is read as far as it can be, and never an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from clusterkit.estimate.setup import (
    Checkpointing,
    Library,
    Loss,
    Offload,
    Optimizer,
    Precision,
    Sharding,
)

_PAIR = re.compile(r"(?<!\w)([a-z_]\w*)\s*[=:]\s*([^\s;,()]+)", re.IGNORECASE)
_ALIASES = {
    "tensor_parallel": "tp", "tensor_parallel_size": "tp", "tp_size": "tp",
    "pipeline_parallel": "pp", "pipeline_parallel_size": "pp", "pp_size": "pp",
    "context_parallel": "cp", "context_parallel_size": "cp", "cp_size": "cp",
    "expert_parallel": "ep", "expert_parallel_size": "ep", "ep_size": "ep",
    "data_parallel": "dp", "data_parallel_size": "dp", "dp_size": "dp",
    "gradient_accumulation_steps": "gas", "grad_accum": "gas", "ga": "gas",
    "global_batch_size": "gbs", "global_batch": "gbs",
    "data_parallel_shard_degree": "dp_shard", "data_parallel_replicate_degree": "dp_replicate",
}  # fmt: skip
UNSAID = frozenset({"", "unknown", "recipe", "per recipe", "default", "?", "-", "n/a", "na"})
"""What tables write where they do not know whether something is computed again."""
_NEVER = frozenset({"no", "none", "false", "off", "0", "disabled", "not", "never", "without"})
_ALWAYS = frozenset({"yes", "true", "on", "1", "enabled", "all", "always", "uniform", "block"})
_SAYS_ZERO = re.compile(r"zero|deepspeed|(?<![a-z])z[0-3]\b")
_ZERO = re.compile(r"(?:zero|stage|(?<![a-z])z)[\s_-]*+(?:(?:stage|dp)[\s_-]*+)?(\d{1,3})")
"""`ZeRO-3`, `zero stage 2`, `DeepSpeed Stage 3`, `deepspeed_stage_2_offload`."""
_GROUP = re.compile(r"intra-node\s*\((\d+)\)")
_LIBRARIES = (
    (("fsdp2", "megatron fsdp", "fully_shard"), Library.FSDP2),
    (("fsdp", "fairscale", "fully sharded"), Library.FSDP1),
    (("hsdp",), Library.FSDP2),
    (("nanotron",), Library.MEGATRON),
    (("deepspeed",), Library.DEEPSPEED),
    (("megatron", "nemo"), Library.MEGATRON),
    (("ddp", "horovod", "single", "zero-0"), Library.DDP),
    (("zero",), Library.DEEPSPEED),
    (("data parallel", "lora"), Library.DDP),
)
"""The first that has a word in the name: Megatron-DeepSpeed leaves the states to DeepSpeed."""
_INTERLEAVED = 2
"""Chunks of a stage under torch's Interleaved1F1B, unless they are given."""
_ZERO_STAGES = (Sharding.NONE, Sharding.OPTIMIZER, Sharding.GRADIENTS, Sharding.FULL)
_ZERO_NAMES = (
    (r"infinity|zero\+\+", Sharding.FULL),
    (r"zero[\s_-]*offload", Sharding.GRADIENTS),
)
_FSDP_NAMES = ((r"no[\s_-]shard", Sharding.NONE), (r"shard[\s_-]grad", Sharding.GRADIENTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """What the name of a strategy says."""

    library: Library
    sharding: Sharding = Sharding.NONE
    shard_group: int | None = None
    offload_optimizer: Offload = Offload.NONE
    offload_params: Offload = Offload.NONE
    lora: bool = False
    quantized: bool = False
    embeddings: bool = False
    """Whether LoRA trains embeddings as well."""
    chunks: int = 1
    """Of each pipeline stage, where the schedule has a name that says so."""
    sequence_parallel: bool = True
    flash_attention: bool = True


def pairs_of(text: str) -> Mapping[str, str]:
    """Return the `key=value` pairs of a configuration or a layout, whatever stands between them."""
    found = {key.lower(): value.lower() for key, value in _PAIR.findall(text)}
    return {_ALIASES.get(key, key): value for key, value in found.items()}


def whole_number(text: str | None) -> int | None:
    """Return the positive number that a text is (`8`, `8.0`, `1e3`), or None where it is none."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return int(value) if math.isfinite(value) and value == int(value) > 0 else None


def strategy_of(text: str, *, precision: str = "") -> Strategy | None:
    """Return what a strategy's name says, or None where it names no way of training at all.

    DeepSpeed without a stage of ZeRO is none, nor is a stage that there is not.
    """
    name = text.lower()
    library = _library_of(name, precision.lower())
    sharding = None if library is None else _sharding_of(name, library)
    if library is None or sharding is None:
        return None
    group = _GROUP.search(name)
    old_megatron = "megatron-deepspeed" in name or ("megatron" in name and "fp16" in precision)
    offload = _offload_of(name)
    return Strategy(
        library=library,
        sharding=sharding,
        shard_group=int(group[1]) if group else None,
        offload_optimizer=offload,
        offload_params=offload if _offloads_params(name, library, sharding) else Offload.NONE,
        lora="lora" in name,
        quantized=bool(re.search(r"q-?lora", name)),
        embeddings="lora" in name and "emb" in name,
        chunks=_INTERLEAVED if "interleaved" in name else 1,
        # Megatron got both in 2022, after the fp16 tables were published.
        sequence_parallel=not old_megatron or "+sp" in name.replace("(+sp)", ""),
        flash_attention=not old_megatron,
    )


def precision_of(text: str) -> Precision:
    """Return the precision that a text names; bf16 with fp32 copies where it names none."""
    name = text.lower()
    if "fp8" in name:
        return Precision.FP8
    if any(word in name for word in ("pure", "-true", "bf16 states")):
        return Precision.PURE_BF16
    if "bf16" in name:
        return Precision.AMP_BF16 if "amp" in name or "mixed" in name else Precision.BF16
    if name == "amp" or ("amp" in name and "fp16" in name):
        return Precision.AMP_FP16
    if "fp16" in name:
        return Precision.FP16
    return Precision.FP32 if "fp32" in name or "float32" in name else Precision.BF16


def is_compiled(precision: str) -> bool:
    """Tell whether a compiler joins kernels (`bf16+compile`)."""
    return any(word in precision.lower() for word in ("compile", "inductor"))


def checkpointing_of(text: str) -> Checkpointing | None:
    """Return what is computed again, or None where the text does not say (`UNSAID`), or oddly."""
    name = text.lower()
    words = re.findall(r"[a-z]+|\d+", name)
    if words[:1] and words[0] in _NEVER and "selective" not in words:
        return Checkpointing.NONE
    if "full" in name:
        return Checkpointing.FULL
    if "layer" in name:
        return Checkpointing.ALTERNATE
    if "selective" in name:
        return Checkpointing.SELECTIVE
    if "only" in words or _NEVER.intersection(words):
        return Checkpointing.NONE
    again = any(word.startswith(("checkpoint", "recompute", "ckpt")) for word in words)
    return Checkpointing.FULL if again or _ALWAYS.intersection(words) else None


def loss_of(text: str) -> Loss | None:
    """Return how the logits are kept, by what a strategy or a note says, or None."""
    name = text.lower()
    if "no liger" in name:
        return Loss.EAGER
    if "liger" in name or "fused ce" in name or "fused cross" in name:
        return Loss.FUSED
    return Loss.CHUNKED if "chunk" in name else None


def optimizer_of(text: str) -> Optimizer:
    """Return the optimizer that a strategy or a note names; AdamW where it names none."""
    name = text.lower()
    if "8-bit" in name or "8bit" in name:
        return Optimizer.PAGED_ADAMW_8BIT if "paged" in name else Optimizer.ADAMW_8BIT
    if "adafactor" in name:
        return Optimizer.ADAFACTOR
    return Optimizer.SGD if "sgd" in name else Optimizer.ADAMW


def _library_of(name: str, precision: str) -> Library | None:
    for words, library in _LIBRARIES:
        if any(word in name for word in words):
            return library
    if re.search(r"\b[tp]p\d*\b", name):
        # Tensor parallelism alone: DTensor under FSDP2 where the model itself is cast.
        return Library.FSDP2 if "-true" in precision else Library.MEGATRON
    return None


def _sharding_of(name: str, library: Library) -> Sharding | None:
    fsdp = library in {Library.FSDP1, Library.FSDP2}
    if fsdp and ("hybrid" in name or "hsdp" in name):
        return None if "zero2" in name else Sharding.HYBRID
    stage = _ZERO.search(name) if _SAYS_ZERO.search(name) else None
    if stage:
        return dict(enumerate(_ZERO_STAGES)).get(int(stage[1]))
    if library is Library.DEEPSPEED:
        return next((found for form, found in _ZERO_NAMES if re.search(form, name)), None)
    if fsdp:
        return next((found for form, found in _FSDP_NAMES if re.search(form, name)), Sharding.FULL)
    return Sharding.OPTIMIZER if "dist" in name and "opt" in name else Sharding.NONE


def _offload_of(name: str) -> Offload:
    if "infinity" in name and "cpu" not in name:
        return Offload.NVME
    if "offload" not in name or re.search(r"no[\s_-]offload|act(?:ivation)?s? offload", name):
        return Offload.NONE
    return Offload.NVME if "nvme" in name else Offload.CPU


def _offloads_params(name: str, library: Library, sharding: Sharding) -> bool:
    if library in {Library.FSDP1, Library.FSDP2}:
        return True  # CPUOffload moves parameters, gradients and the optimizer together.
    # Only what ZeRO-3 divides may be elsewhere.
    return sharding is Sharding.FULL and ("param" in name or "optim" not in name)
