"""What the estimator says of a job whose GPUs ran out of memory, as far as its plan tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.records import count_of, counts_of, object_of, text_of, texts_of
from clusterkit.core.shell import quote
from clusterkit.executors.run.runfolder import RunFolder

_MODEL = ("--model", "--model-name", "--model-name-or-path")
_MICRO_BATCH = ("--micro-batch", "--micro-batch-size", "--per-device-train-batch-size")
_SEQ = ("--seq", "--seq-length", "--seq-len", "--max-seq-length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do about the memory."""

    command: str
    """The question to the estimator; capital words stand for what the plan does not tell."""
    answer: str | None
    """What it answers; None where something is missing."""


def advise(run: RunFolder) -> Advice | None:
    """Return the estimator's advice for a job of ours; None where it has no plan."""
    plan = files.read_json(run.plan) if run.foreign is None else None
    if plan is None:
        return None
    known = dict(_known(plan))
    shown = {"model": "MODEL", "gpu": "GPU", **known}
    flags = " ".join(f"--{name.replace('_', '-')} {quote(str(v))}" for name, v in shown.items())
    answer = _answer(known) if {"model", "gpu"} <= known.keys() else None
    return Advice(command=f"clusterkit estimate {flags}", answer=answer)


def _known(plan: Mapping[str, Any]) -> Iterator[tuple[str, str | int]]:
    args = texts_of(plan, "args")
    gpu = text_of(object_of(plan, "cluster"), "gpu_type")
    model = _value(args, _MODEL)
    if model:
        yield "model", model
    if gpu:
        yield "gpu", gpu
    if processes := count_of(plan, "processes"):
        yield "gpus", processes
    if slots := counts_of(plan, "slots"):
        yield "gpus_per_node", slots[0]
    for name, flags in (("micro_batch", _MICRO_BATCH), ("seq", _SEQ)):
        value = _value(args, flags)
        if value and value.isascii() and value.isdigit():
            yield name, int(value)


def _value(args: Sequence[str], flags: Sequence[str]) -> str | None:
    """Return the value of the first of these flags, with `_` for `-` as well, and `=`."""
    for index, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name.replace("_", "-") in flags:
            return value if equals else next(iter(args[index + 1 :]), None)
    return None


def _answer(known: Mapping[str, Any]) -> str | None:
    # A third of a second, and only here: the models, the GPUs, every strategy.
    from clusterkit.estimate.models.named import model_named  # noqa: PLC0415
    from clusterkit.estimate.query.answer import answer  # noqa: PLC0415
    from clusterkit.estimate.query.options import EstimateOptions  # noqa: PLC0415

    try:
        model_named(known["model"])  # not somebody's file or module, which would be run
        return answer(EstimateOptions(**known)).why
    except UserError:
        return None
