"""The `clusterkit submit` line of a setup, and the files that hold the rest of it.

What the files and the arguments of Megatron-LM say is `templates/frameworks/estimate`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import jinja2
import yaml

from clusterkit.core.data import read_template
from clusterkit.estimate.refusals import last_stage
from clusterkit.estimate.setup import Library, Loss, Optimizer, Precision, Setup, Sharding
from clusterkit.launch.frameworks.base import preset_text
from clusterkit.launch.rank_layout.exports import MEGATRON_FLAGS

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

STAGES = {sharding: stage for stage, sharding in enumerate(Sharding) if stage < 4}
"""The stage of ZeRO; none for hybrid sharding."""

_MACHINES = frozenset({"model", "gpu", "gpus", "gpus_per_node", "interconnect", "library"})
IN_COMMAND = _MACHINES | {
    *("sharding", "shard_group", "precision", "offload_optimizer", "offload_params")
}
"""Fields of a setup that the submit line or the configuration of FSDP holds, or nobody."""
IN_DS_CONFIG = IN_COMMAND | {"micro_batch", "accumulation", "tp", "cp", "zeropp"}
_IN_ARGUMENTS = _MACHINES | {
    *("sharding", "seq", "sequence_parallel", "micro_batch", "accumulation", "precision"),
    *(*MEGATRON_FLAGS, "optimizer", "loss", "fp32_gradients", "checkpointing", "flash_attention"),
}
"""Fields that arguments of Megatron-LM hold, for all that it has."""


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
    found = _rendered(setup, folder, script)
    documents = found["files"]
    if DS_CONFIG in documents:
        documents[DS_CONFIG] = _over_preset(setup, documents[DS_CONFIG])
    files = {name: json.dumps(text, indent=2) + "\n" for name, text in documents.items()}
    if ACCELERATE in documents:
        files[ACCELERATE] = yaml.safe_dump(documents[ACCELERATE], sort_keys=False)
    arguments = ((flag, value) for flag, value in found["arguments"].items())
    command = (
        *("clusterkit", "submit"),
        *(("--cluster", cluster) if cluster else ()),
        *("--framework", "deepspeed" if setup.library is Library.DEEPSPEED else "torchrun"),
        *("--nodes", str(setup.nodes)),
        *("--gpus-per-node", str(min(setup.gpus_per_node, setup.gpus))),
        found["script"],
        *(str(word) for argument in arguments for word in argument if word is not None),
    )
    files[SUBMIT] = f"#!/bin/sh\nexec {_folded(command)}\n"
    return Launch(folder=folder, command=command, files=files, notes=tuple(found["notes"]))


def _rendered(setup: Setup, folder: str, script: str | None) -> dict[str, Any]:
    # JSON is YAML: as such a value is what it was, whatever is in it.
    environment = jinja2.Environment(  # noqa: S701
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=json.dumps,
    )
    cpu, nvme = (
        json.loads(preset_text("deepspeed", f"zero3-{where}")) for where in ("offload", "nvme")
    )
    template = environment.from_string(read_template("frameworks/estimate/launch.yaml.j2"))
    text = template.render(
        setup=setup,
        rest=_rest(setup),
        folder=folder,
        script=script,
        dtypes=DTYPES,
        ranks=MEGATRON_FLAGS,
        stage=STAGES.get(setup.sharding),
        last_stage=last_stage(setup),
        presets={"cpu": cpu, "nvme": nvme},
    )
    return dict(yaml.safe_load(text))


def _rest(setup: Setup) -> Mapping[str, Any]:
    """Return the fields of a setup that have no other place: the training script has to do it.

    Of Megatron-LM, those only that its arguments cannot say and that are not as usual.
    """
    values = {field.name: getattr(setup, field.name) for field in fields(Setup)}
    values["adapter"] = asdict(setup.adapter) if setup.adapter else None
    if setup.library is not Library.MEGATRON:
        elsewhere = IN_DS_CONFIG if setup.library is Library.DEEPSPEED else IN_COMMAND
        rest = {name: value for name, value in values.items() if name not in elsewhere}
        return {"model": setup.model.name, **rest}
    usual = {field.name: field.default for field in fields(Setup)}
    unsaid = {
        name: value
        for name, value in values.items()
        if name not in _IN_ARGUMENTS and value != usual[name]
    }
    if setup.loss not in {Loss.EAGER, Loss.FUSED}:
        unsaid["loss"] = setup.loss
    if setup.tp == 1 and not setup.sequence_parallel:
        unsaid["sequence_parallel"] = False
    return unsaid


def _over_preset(setup: Setup, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return DeepSpeed's configuration: the preset of the stage with the setup's numbers."""
    preset = json.loads(preset_text("deepspeed", f"zero{max(STAGES[setup.sharding], 1)}"))
    # DeepSpeed has only this optimizer of ours: the script passes any other by itself.
    replaced = {"bf16"} | (set() if setup.optimizer is Optimizer.ADAMW else {"optimizer"})
    kept = {name: value for name, value in preset.items() if name not in replaced}
    zero = {**preset["zero_optimization"], **changes["zero_optimization"]}
    return {**kept, **changes, "zero_optimization": zero}


def _folded(command: Sequence[str]) -> str:
    """Return the command; each option, and the script, on a line of its own."""
    lines: list[list[str]] = [list(command[:2])]
    for word in command[2:]:
        takes_it = len(lines[-1]) == 1 and lines[-1][0].startswith("--")
        if word.startswith("--") or not takes_it:
            lines.append([word])
        else:
            lines[-1].append(word)
    return " \\\n  ".join(shlex.join(line) for line in lines)
