"""The `clusterkit submit` line of a setup, and the files that hold the rest of it.

Each fact has one home: machines stand in the submit line; batch, ZeRO stage, offloading and
precision in `ds_config.json` (DeepSpeed's documented keys) or `fsdp.json` (arguments of
`fully_shard` or `FullyShardedDataParallel`); Megatron-LM takes everything as arguments; and what
only the training script can do in `training.json`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import yaml

from clusterkit.estimate.advice.megatron import arguments_of, beyond_arguments
from clusterkit.estimate.setup import (
    Checkpointing,
    Library,
    Offload,
    Optimizer,
    Precision,
    Setup,
    Sharding,
)
from clusterkit.launch.deepspeed_presets import preset_text

SUBMIT = "submit.sh"
DS_CONFIG = "ds_config.json"
FSDP = "fsdp.json"
TRAINING = "training.json"
ACCELERATE = "accelerate.yaml"
FILES = (SUBMIT, DS_CONFIG, FSDP, TRAINING, ACCELERATE)

DTYPES: Mapping[Precision, tuple[str, str, bool]] = {
    Precision.FP32: ("float32", "float32", False),
    Precision.AMP_BF16: ("float32", "bfloat16", False),
    Precision.AMP_FP16: ("float32", "float16", False),
    Precision.BF16: ("bfloat16", "bfloat16", True),
    Precision.FP16: ("float16", "float16", True),
    Precision.PURE_BF16: ("bfloat16", "bfloat16", False),
    Precision.FP8: ("bfloat16", "float8", True),
}
"""Dtype of the parameters, dtype of products, and whether the optimizer keeps copies in fp32."""

STAGES: Mapping[Sharding, int] = {
    Sharding.NONE: 0,
    Sharding.OPTIMIZER: 1,
    Sharding.GRADIENTS: 2,
    Sharding.FULL: 3,
}
FSDP1_STRATEGIES: Mapping[Sharding, str] = {
    Sharding.NONE: "NO_SHARD",
    Sharding.GRADIENTS: "SHARD_GRAD_OP",
    Sharding.FULL: "FULL_SHARD",
    Sharding.HYBRID: "HYBRID_SHARD",
}


IN_COMMAND = frozenset(
    {"model", "gpu", "gpus", "gpus_per_node", "interconnect", "library", "sharding", "shard_group"}
    | {"precision", "offload_optimizer", "offload_params"}
)
"""Fields of a setup that the submit line or the configuration of FSDP holds, or nobody."""
IN_DS_CONFIG = IN_COMMAND | {"micro_batch", "accumulation", "tp", "cp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What starts a setup."""

    folder: str
    command: tuple[str, ...]
    files: Mapping[str, str]
    """Name in the folder and text; the command stands in `submit.sh` too."""
    notes: tuple[str, ...]
    """What the training script has to do with them."""


def launch_of(
    setup: Setup, *, folder: str = ".", cluster: str | None = None, script: str | None = None
) -> Launch:
    """Return what starts `setup` with its files in `folder`."""
    files: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    if setup.library is Library.MEGATRON:
        script, arguments = script or "pretrain_gpt.py", arguments_of(setup)
        notes = ("add data, tokenizer, learning rate and checkpoints to Megatron's arguments",)
        rest = beyond_arguments(setup)
        if rest:
            files[TRAINING] = _json(rest)
            notes += (f"{script} has no argument for what {TRAINING} says: {', '.join(rest)}",)
    else:
        script, arguments = script or "train.py", ()
        files[TRAINING] = _json(_training(setup))
        files[ACCELERATE] = _yaml(_accelerate(setup, folder))
        if setup.library is Library.DEEPSPEED:
            files[DS_CONFIG] = _json(_ds_config(setup))
            arguments = ("--deepspeed_config", f"{folder}/{DS_CONFIG}")
            notes = (f"{script} passes --deepspeed_config to deepspeed.initialize",)
            if Offload.NVME in {setup.offload_optimizer, setup.offload_params}:
                notes += (f"nvme_path in {DS_CONFIG} is /local_nvme: make it a fast local disk",)
        elif setup.library in {Library.FSDP1, Library.FSDP2}:
            files[FSDP] = _json(_fsdp(setup))
            notes = (f"{script} shards its model as {FSDP} says",)
        notes += (f"{script} does what {TRAINING} says (sequence length, checkpointing ...)",)
    command = (
        *("clusterkit", "submit"),
        *(("--cluster", cluster) if cluster else ()),
        *("--framework", "deepspeed" if setup.library is Library.DEEPSPEED else "torchrun"),
        *("--nodes", str(setup.nodes)),
        *("--gpus-per-node", str(min(setup.gpus_per_node, setup.gpus))),
        script,
        *arguments,
    )
    files[SUBMIT] = f"#!/bin/sh\nexec {_folded(command)}\n"
    return Launch(folder=folder, command=command, files=files, notes=notes)


def _folded(command: tuple[str, ...]) -> str:
    """Return the command; each option, and the script, on a line of its own."""
    start, words = command[:2], command[2:]
    lines: list[list[str]] = [list(start)]
    for word in words:
        takes_it = len(lines[-1]) == 1 and lines[-1][0].startswith("--")
        if word.startswith("--") or not takes_it:
            lines.append([word])
        else:
            lines[-1].append(word)
    return " \\\n  ".join(shlex.join(line) for line in lines)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def _yaml(document: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(document, sort_keys=False))


def _training(setup: Setup) -> Mapping[str, Any]:
    """Return what no configuration of a library holds: the training script has to do it.

    The keys are the fields of `Setup`; all that have no place elsewhere.
    """
    parameters, products, copies = DTYPES[setup.precision]
    elsewhere = IN_DS_CONFIG if setup.library is Library.DEEPSPEED else IN_COMMAND
    document: dict[str, Any] = {"model": setup.model.name}
    document |= {
        field.name: getattr(setup, field.name)
        for field in fields(Setup)
        if field.name not in elsewhere
    }
    document["adapter"] = asdict(setup.adapter) if setup.adapter else None
    if setup.library is not Library.DEEPSPEED:
        document |= {"parameter_dtype": parameters, "optimizer_copies_in_fp32": copies}
        if setup.library is Library.DDP:
            document["autocast"] = None if parameters == products else products
            document["zero_redundancy_optimizer"] = setup.sharding is Sharding.OPTIMIZER
    elif setup.precision is Precision.FP8:
        document["products"] = products
    return document


def _ds_config(setup: Setup) -> Mapping[str, Any]:
    """Return DeepSpeed's configuration: the preset of the stage with the setup's numbers."""
    stage = STAGES[setup.sharding]
    document: dict[str, Any] = json.loads(preset_text(f"zero{max(stage, 1)}"))
    document["train_micro_batch_size_per_gpu"] = setup.micro_batch
    document["gradient_accumulation_steps"] = setup.accumulation
    del document["bf16"]
    document.update(_ds_precision(setup.precision))
    if setup.optimizer is not Optimizer.ADAMW:
        del document["optimizer"]  # DeepSpeed has no such one: the script passes its own
    zero = document["zero_optimization"]
    zero["stage"] = stage
    nvme = json.loads(preset_text("zero3-nvme"))
    cpu = json.loads(preset_text("zero3-offload"))["zero_optimization"]
    for key, where in (
        ("offload_optimizer", setup.offload_optimizer),
        ("offload_param", setup.offload_params),
    ):
        if where is not Offload.NONE:
            zero[key] = (cpu if where is Offload.CPU else nvme["zero_optimization"])[key]
    if Offload.NVME in {setup.offload_optimizer, setup.offload_params}:
        document["aio"] = nvme["aio"]
    if setup.tp > 1:
        document["tensor_parallel"] = {"autotp_size": setup.tp}
    if setup.cp > 1:
        document["sequence_parallel_size"] = setup.cp
    return document


def _ds_precision(precision: Precision) -> Mapping[str, Any]:
    if precision in {Precision.AMP_BF16, Precision.AMP_FP16}:
        return {"torch_autocast": {"enabled": True, "dtype": DTYPES[precision][1]}}
    if precision is Precision.FP16:
        return {"fp16": {"enabled": True}}
    if precision is Precision.PURE_BF16:
        kept = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
        return {"bf16": {"enabled": True, **kept}}
    return {"bf16": {"enabled": precision is not Precision.FP32}}


def _fsdp(setup: Setup) -> Mapping[str, Any]:
    """Return the arguments of `fully_shard` or `FullyShardedDataParallel`, dtypes by name."""
    ranks = setup.dp * setup.cp
    group = setup.shard_group if setup.sharding is Sharding.HYBRID else None
    mesh = {"dp_replicate": ranks // group, "dp_shard": group} if group else {"dp_shard": ranks}
    parameters, products, _ = DTYPES[setup.precision]
    mixed = None
    if products != parameters or setup.precision is not Precision.FP32:
        mixed = {"param_dtype": products, "reduce_dtype": "float32"}
    offload = setup.offload_params is not Offload.NONE
    if setup.library is Library.FSDP2:
        arguments: dict[str, Any] = {
            "mesh": mesh,
            "reshard_after_forward": setup.sharding is not Sharding.GRADIENTS,
            "mp_policy": mixed,
            "offload_policy": {"pin_memory": True} if offload else None,
        }
        return {"fully_shard": arguments}
    return {
        "FullyShardedDataParallel": {
            "sharding_strategy": FSDP1_STRATEGIES[setup.sharding],
            "device_mesh": mesh,
            "mixed_precision": mixed,
            "cpu_offload": {"offload_params": True} if offload else None,
        }
    }


def _accelerate(setup: Setup, folder: str) -> Mapping[str, Any]:
    """Return the same for `accelerate launch --config_file` (its documented keys)."""
    kind = {Library.DEEPSPEED: "DEEPSPEED", Library.DDP: "MULTI_GPU" if setup.gpus > 1 else "NO"}
    products = DTYPES[setup.precision][1]
    short = {"bfloat16": "bf16", "float16": "fp16", "float8": "fp8", "float32": "no"}
    document: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind.get(setup.library, "FSDP"),
        "num_machines": setup.nodes,
        "num_processes": setup.gpus,
    }
    if setup.library is Library.DEEPSPEED:  # it refuses `mixed_precision` beside the file
        return {**document, "deepspeed_config": {"deepspeed_config_file": f"{folder}/{DS_CONFIG}",
                "zero3_init_flag": setup.sharding is Sharding.FULL}}  # fmt: skip
    document["mixed_precision"] = short[products]
    if setup.library is Library.DDP:
        return document
    full = setup.checkpointing is Checkpointing.FULL
    settings: dict[str, Any] = {
        "fsdp_version": 2 if setup.library is Library.FSDP2 else 1,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": setup.offload_params is not Offload.NONE,
        "fsdp_activation_checkpointing": full,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    if setup.library is Library.FSDP2:
        settings["fsdp_reshard_after_forward"] = setup.sharding is not Sharding.GRADIENTS
    else:
        settings["fsdp_sharding_strategy"] = FSDP1_STRATEGIES[setup.sharding]
    document["fsdp_config"] = settings
    if setup.sharding is Sharding.HYBRID and setup.library is Library.FSDP2 and setup.shard_group:
        document["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": setup.dp // setup.shard_group,
            "parallelism_config_dp_shard_size": setup.shard_group,
        }
    return document
