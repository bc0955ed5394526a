"""Read a launch back to the setup that it was written for: all that is said is in its files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import Any

from clusterkit.core.errors import UserError, choices_hint, did_you_mean
from clusterkit.estimate.advice import launch
from clusterkit.estimate.machines.gpus import Gpu
from clusterkit.estimate.setup import (
    Adapter,
    Checkpointing,
    Library,
    Loss,
    Offload,
    Optimizer,
    Precision,
    Setup,
    Sharding,
)
from clusterkit.estimate.shapes import ModelShape
from clusterkit.launch.rank_layout.exports import MEGATRON_FLAGS

_ENUMS: Mapping[str, type[StrEnum]] = {
    "checkpointing": Checkpointing,
    "loss": Loss,
    "optimizer": Optimizer,
}
_FSDP1 = {
    Sharding.NONE: "NO_SHARD",
    Sharding.GRADIENTS: "SHARD_GRAD_OP",
    Sharding.FULL: "FULL_SHARD",
    Sharding.HYBRID: "HYBRID_SHARD",
}
_OTHER_KEYS = frozenset(
    {"model", "parameter_dtype", "optimizer_copies_in_fp32", "autocast", "products"}
    | {"zero_redundancy_optimizer"}
)


def setup_from_launch(
    files: Mapping[str, str], *, model: ModelShape, gpu: Gpu, interconnect: str | None = None
) -> Setup:
    """Return the setup that a launch stands for; models, GPUs and networks have no place in it.

    Raises:
        UserError: a file is missing, or says something that is not known.
    """
    words = _command(files)
    nodes, per_node = _option(words, "--nodes"), _option(words, "--gpus-per-node")
    gpus = nodes * per_node
    if "--tensor-model-parallel-size" in words or "--use-distributed-optimizer" in words:
        settings = dict(settings_of(words, gpus))
        if launch.TRAINING in files:
            settings |= _training(_document(files, launch.TRAINING), launch.IN_COMMAND)
    else:
        training = _document(files, launch.TRAINING)
        with_deepspeed = launch.DS_CONFIG in files
        homes = launch.IN_DS_CONFIG if with_deepspeed else launch.IN_COMMAND
        settings = _training(training, homes)
        if with_deepspeed:
            settings |= _deepspeed(_document(files, launch.DS_CONFIG), training)
        elif launch.FSDP in files:
            settings |= _fsdp(_document(files, launch.FSDP), training)
        else:
            settings |= _ddp(training)
    return Setup(
        model=model,
        gpu=gpu,
        gpus=gpus,
        gpus_per_node=per_node,
        interconnect=interconnect,
        **settings,
    )


def _command(files: Mapping[str, str]) -> Sequence[str]:
    text = files.get(launch.SUBMIT)
    if text is None:
        raise UserError(f"there is no {launch.SUBMIT}", hint="clusterkit estimate --launch")
    return shlex.split(text.replace("\\\n", " "), comments=True)


def _option(words: Sequence[str], flag: str) -> int:
    try:
        return int(words[words.index(flag) + 1])
    except (ValueError, IndexError):
        raise UserError(f"{launch.SUBMIT} gives no number for {flag}") from None


def _document(files: Mapping[str, str], name: str) -> Mapping[str, Any]:
    try:
        document = json.loads(files[name])
    except (KeyError, ValueError) as error:
        raise UserError(f"{name} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise UserError(f"{name} holds no JSON object")
    return document


def _training(training: Mapping[str, Any], homes: Collection[str]) -> dict[str, Any]:
    """Return the fields of a setup that stand in `training.json`; those left out are as usual."""
    mine = {field.name for field in fields(Setup)} - set(homes)
    unknown = next((key for key in training if key not in mine | _OTHER_KEYS), None)
    if unknown is not None:
        raise UserError(
            f"{launch.TRAINING}: unknown key {unknown!r}", hint=choices_hint(unknown, mine)
        )
    settings = {name: training[name] for name in mine & training.keys()}
    if settings.get("adapter"):
        settings["adapter"] = Adapter(**settings["adapter"])
    for name, kind in _ENUMS.items():
        if name in settings:
            settings[name] = _member(kind, settings[name], name)
    return settings


def _member(kind: type[StrEnum], text: object, name: str) -> StrEnum:
    try:
        return kind(str(text))
    except ValueError:
        hint = choices_hint(str(text), [str(member) for member in kind])
        raise UserError(f"{launch.TRAINING}: {name} is {text!r}", hint=hint) from None


def _precision(parameters: str, products: str, copies: bool) -> Precision:
    wanted = (parameters, products, copies)
    for precision, dtypes in launch.DTYPES.items():
        if dtypes == wanted:
            return precision
    kept = " and copies in fp32" if copies else ""
    raise UserError(f"no precision has parameters in {parameters}{kept}, products in {products}")


def _ddp(training: Mapping[str, Any]) -> dict[str, Any]:
    parameters = training["parameter_dtype"]
    products = training["autocast"] or parameters
    return {
        "library": Library.DDP,
        "sharding": Sharding.OPTIMIZER if training["zero_redundancy_optimizer"] else Sharding.NONE,
        "precision": _precision(parameters, products, training["optimizer_copies_in_fp32"]),
    }


def _fsdp(document: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    second = "fully_shard" in document
    arguments = document["fully_shard" if second else "FullyShardedDataParallel"]
    mesh = arguments["mesh" if second else "device_mesh"]
    mixed = arguments["mp_policy" if second else "mixed_precision"]
    offloaded = arguments["offload_policy" if second else "cpu_offload"] is not None
    group = mesh["dp_shard"] if "dp_replicate" in mesh else None
    if not second:
        named = {name: sharding for sharding, name in _FSDP1.items()}
        sharding = named.get(arguments["sharding_strategy"])
        if sharding is None:
            name = str(arguments["sharding_strategy"])
            raise UserError(f"unknown sharding strategy {name!r}", hint=did_you_mean(name, named))
    elif group is not None:
        sharding = Sharding.HYBRID
    else:
        sharding = Sharding.FULL if arguments["reshard_after_forward"] else Sharding.GRADIENTS
    parameters = training["parameter_dtype"]
    products = mixed["param_dtype"] if mixed else parameters
    where = Offload.CPU if offloaded else Offload.NONE
    return {
        "library": Library.FSDP2 if second else Library.FSDP1,
        "sharding": sharding,
        "shard_group": group,
        "offload_optimizer": where,
        "offload_params": where,
        "precision": _precision(parameters, products, training["optimizer_copies_in_fp32"]),
    }


def _deepspeed(document: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    zero = document.get("zero_optimization", {})
    stages = {stage: sharding for sharding, stage in launch.STAGES.items()}
    return {
        "library": Library.DEEPSPEED,
        "sharding": stages[zero.get("stage", 0)],
        "micro_batch": document["train_micro_batch_size_per_gpu"],
        "accumulation": document.get("gradient_accumulation_steps", 1),
        "offload_optimizer": Offload(zero.get("offload_optimizer", {}).get("device", "none")),
        "offload_params": Offload(zero.get("offload_param", {}).get("device", "none")),
        "tp": document.get("tensor_parallel", {}).get("autotp_size", 1),
        "cp": document.get("sequence_parallel_size", 1),
        "zeropp": zero.get("zero_quantized_weights", False),
        "precision": _deepspeed_precision(document, training),
    }


def _deepspeed_precision(document: Mapping[str, Any], training: Mapping[str, Any]) -> Precision:
    autocast, bf16 = document.get("torch_autocast", {}), document.get("bf16", {})
    if autocast.get("enabled"):
        bits = autocast.get("dtype")
        return Precision.AMP_FP16 if bits == "float16" else Precision.AMP_BF16
    if document.get("fp16", {}).get("enabled"):
        return Precision.FP16
    if not bf16.get("enabled"):
        return Precision.FP32
    if training.get("products") == "float8":
        return Precision.FP8
    return Precision.PURE_BF16 if bf16.get("bf16_master_weights_and_grads") else Precision.BF16


def settings_of(arguments: Sequence[str], gpus: int) -> Mapping[str, Any]:
    """Return the fields of a `Setup` that arguments of Megatron-LM stand for."""
    given = dict(zip(arguments, (*arguments[1:], ""), strict=True))
    ranks = {name: _number(given, flag, 1) for name, flag in MEGATRON_FLAGS.items()}
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


def _number(given: Mapping[str, str], flag: str, default: int | None) -> int:
    text = given.get(flag, default)
    try:
        return int(text)
    except (TypeError, ValueError):
        raise UserError(f"{flag} of Megatron-LM is {text!r}, no whole number") from None


def _read_precision(given: Mapping[str, str]) -> Precision:
    if "--fp8-format" in given:
        return Precision.FP8
    if "--fp16" in given:
        return Precision.FP16
    return Precision.BF16 if "--bf16" in given else Precision.FP32
