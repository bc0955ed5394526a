"""Flags of other launchers and schedulers that people type out of habit, and ours instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_SLOTS = ("--gpus-per-node N", "the slots of each node, not of the whole job")
_NODES = ("--nodes N", "")
_RANKS = ("--processes N", "all ranks; leave it out to fill every slot")
_CHOSEN = ("leave it out", "clusterkit chooses address and port of every job")

HABITS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("-N", "--nnodes", "--num-nodes", "--num_nodes", "--num-machines"), _NODES),
    **dict.fromkeys(
        (
            "--gpus",
            "-G",
            "--gpus_per_node",
            "--num-gpus",
            "--num_gpus",
            "--nproc-per-node",
            "--nproc_per_node",
            "--ntasks-per-node",
            "--gres",
            "--gpus-per-task",
            "--slots",
            "--slots-per-host",
        ),
        _SLOTS,
    ),
    **dict.fromkeys(
        ("--ntasks", "--np", "--num-proc", "--num-processes", "--num_processes"), _RANKS
    ),
    **dict.fromkeys(
        ("--master-addr", "--master_addr", "--master-port", "--master_port", "--rdzv-endpoint"),
        _CHOSEN,
    ),
    "-d": ("--after JOB:ok", "or JOB:any, JOB:fail"),
    "--dependency": ("--after JOB:ok", "or JOB:any, JOB:fail"),
    "-p": ("--set sbatch.partition=NAME", "or `partition:` of the cluster"),
    "-A": ("--set sbatch.account=NAME", "or `account:` of the cluster"),
    "-q": ("--set sbatch.qos=NAME", "or `qos:` of the cluster"),
    "-C": ("--set sbatch.constraint=FEATURES", "or `constraint:` of the cluster"),
    "-w": ("--set sbatch.nodelist=LIST", ""),
    "-x": ("--exclude LIST", ""),
    "-J": ("--name NAME", ""),
    "--job-name": ("--name NAME", ""),
    "--time-limit": ("--time TIME", ""),
    "--timeout": ("--time TIME", ""),
    "--export": ("--env K=V", "once for each variable"),
    "--container-image": ("--image NAME", "with --container pyxis, or another runtime"),
    "--hostfile": ("--cluster NAME", "a cluster of kind ssh with `hostfile:` in clusterkit.yaml"),
    "--launcher": ("--framework NAME", ""),
    "--backend": ("--framework NAME", ""),
}
"""What is typed -> what to type, with its value in capitals, and a remark."""

_TRAINING = {
    **dict.fromkeys(("--batch-size", "--bs", "--mbs", "--train-batch-size"), "--micro-batch N"),
    **dict.fromkeys(("--per-device-train-batch-size", "--micro-batch-size"), "--micro-batch N"),
    **dict.fromkeys(("--gbs", "--global-batch-size"), "--global-batch N"),
    **dict.fromkeys(("--gas", "--grad-accum", "--gradient-accumulation-steps"), "--accumulation N"),
    **dict.fromkeys(("--seq-len", "--seq-length", "--sequence-length", "--max-length"), "--seq N"),
    **dict.fromkeys(("--num-gpus", "--n-gpus", "--world-size", "--devices"), "--gpus N"),
    **dict.fromkeys(("--gpu-type", "--gpu-name", "--device"), "--gpu NAME"),
    **dict.fromkeys(("--dtype", "--mixed-precision"), "--precision NAME"),
    **dict.fromkeys(("--tensor-parallel", "--tensor-model-parallel-size", "-tp"), "--tp N"),
    **dict.fromkeys(("--pipeline-parallel", "--pipeline-model-parallel-size", "-pp"), "--pp N"),
    **dict.fromkeys(("--zero", "--zero-stage", "--stage"), "--strategy zeroN"),
    **dict.fromkeys(("--nodes", "-N", "--nnodes"), "--gpus N, which are those of all nodes"),
    "--bf16": "--precision bf16",
    "--fp16": "--precision fp16",
    "--fp8": "--precision fp8",
    "--lora": "--lora-rank 16",
    "--network": "--interconnect NAME",
    **dict.fromkeys(
        ("--activation-checkpointing", "--gradient-checkpointing", "--recompute", "--ac"),
        "--checkpointing full",
    ),
}
"""The same for a verb that asks about training, and starts none."""

_LAYOUT = {
    **{option: ours for option, ours in _TRAINING.items() if ours in {"--tp N", "--pp N"}},
    **dict.fromkeys(("--data-parallel", "--data-parallel-size", "--replicas", "-dp"), "--dp N"),
    **dict.fromkeys(("--context-parallel", "--context-parallel-size", "-cp"), "--cp N"),
    **dict.fromkeys(("--expert-parallel", "--expert-model-parallel-size", "-ep"), "--ep N"),
    **{option: ours for option, (ours, _) in HABITS.items() if ours.startswith("--nodes")},
    **{option: ours for option, (ours, _) in HABITS.items() if ours.startswith("--gpus-per")},
    "--nvlink": "--island N",
    **dict.fromkeys(("--facts", "--measurements", "--preflight", "--replay"), "--bundle DIR"),
}
"""The same for a verb that lays out ranks."""

BARE = frozenset({"exclusive", "hold"})
SBATCH = BARE | {
    "account", "begin", "comment", "constraint", "cpus-per-gpu", "cpus-per-task",
    "licenses", "mail-type", "mail-user", "mem", "mem-per-cpu", "mem-per-gpu", "nodelist",
    "partition", "qos", "reservation", "switches", "tmp", "wckey",
}  # fmt: skip
"""Options of sbatch that clusterkit hands on under `--set`; those in `BARE` take no value."""


_VALUED = frozenset(
    option
    for option, instead in (_TRAINING | _LAYOUT).items()
    if instead.endswith(("N", "E", "DIR"))
)


def takes_value(option: str) -> bool:
    """Tell whether a word follows this habit of theirs."""
    return option in HABITS or option in _VALUED or (option.removeprefix("--") in SBATCH - BARE)


def is_habit(option: str) -> bool:
    """Tell whether it is an option of others, with a value or without."""
    return (
        option in HABITS
        or option in _TRAINING
        or option in _LAYOUT
        or option.removeprefix("--") in SBATCH
    )


def ours(option: str, words: Sequence[str], known: Collection[str]) -> str | None:
    """Return what to type instead of `option`, as it stands in `words`.

    None where nothing is known of it, or where the verb, whose options are `known`, has no use
    for it.
    """
    value = _value_of(option, words) if takes_value(option) else None
    if "--island" in known:
        return _filled(_LAYOUT[option], value) if option in _LAYOUT else None
    if "--micro-batch" in known:
        return _filled(_TRAINING[option], value) if option in _TRAINING else None
    if option.removeprefix("--") in SBATCH and option.startswith("--"):
        shown = value or ("" if option[2:] in BARE else "VALUE")
        instead, remark = f"--set sbatch.{option[2:]}={shown}", ""
    elif option == "--gres" and value is not None and not value.startswith("gpu"):
        instead, remark = f"--set sbatch.gres={value}", ""
    elif option in HABITS:
        instead, remark = HABITS[option]
        instead = _filled(instead, value)
    else:
        return None
    if "--set" not in known or instead.split(" ")[0] not in {*known, "leave"}:
        return None
    return f"{instead} ({remark})" if remark else instead


def _value_of(option: str, words: Sequence[str]) -> str | None:
    for word, following in zip(words, (*words[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else (following if following[:1] not in {"", "-"} else None)
    return None


def _filled(instead: str, value: str | None) -> str:
    """Put the user's value in the place of the capitals, a number where one is wanted."""
    if value is None:
        return instead
    if instead.endswith((" N", "zeroN")):
        number = re.search(r"(?<!\d)\d+(:\d+)?$", value)
        return instead[:-1] + number[0].rpartition(":")[2] if number else instead
    return re.sub(r"(?<![A-Z])[A-Z]+(=[A-Z]+)?$", lambda _: value, instead)
