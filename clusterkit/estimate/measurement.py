"""Read one measured step and its all-reduces.

The file, as `examples/measure.py` writes it:

    {"schema": 1,
     "setup": {"model": "llama-3.1-8b", "gpu": "NVIDIA H100 80GB HBM3", "gpus": 8,
               "gpus_per_node": 8, "strategy": "fsdp", "precision": "bf16", "seq": 4096,
               "micro_batch": 2, "accumulation": 1},
     "allocated_bytes": 51e9, "reserved_bytes": 60e9, "step_s": 1.93,
     "all_reduce": [{"bytes": 268435456, "seconds": 0.0015, "ranks": 8}]}

`model` is a known name, a number of parameters (`7B`), or an object with the keys of a
`config.json`. A figure that is null or absent was not measured. The setup may also say `tp`, `pp`,
`vpp`, `cp`, `ep`, `checkpointing`, `loss`, `optimizer`, `compile`, `no_sync`, `flash_attention`,
`offload_activations`, `lora_rank` and `interconnect`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError
from pydantic_core import ErrorDetails

from clusterkit.config.fields import ValueProblemError
from clusterkit.config.validate import complaint
from clusterkit.core import files
from clusterkit.core.errors import Position, Problem, UserError, choices_hint
from clusterkit.estimate.factors import SCHEMA
from clusterkit.estimate.machines.gpus import Gpu, gpu_named
from clusterkit.estimate.machines.interconnects import Network, interconnect_named
from clusterkit.estimate.models.model_config import shape_of
from clusterkit.estimate.models.named import model_named, model_of_params
from clusterkit.estimate.request import Request, setup_of
from clusterkit.estimate.results import GIB
from clusterkit.estimate.setup import Checkpointing, Loss, Optimizer, Precision, Setup
from clusterkit.estimate.shapes import ModelShape
from clusterkit.estimate.strategies import Strategy, strategy_named

_Count = Annotated[int, Field(strict=True, ge=1)]
_Figure = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
_Switch = Annotated[bool, Field(strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """One measured size of an all-reduce."""

    bytes: _Figure
    seconds: _Figure
    ranks: _Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was measured, and on what; None for a figure that was not."""

    setup: Setup
    strategy: str
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    device_bytes: float | None = None
    """What `nvidia-smi` showed."""
    step_s: float | None = None
    all_reduce: tuple[AllReduce, ...] = ()

    @property
    def subject(self) -> str:
        """What was measured, in words."""
        setup = self.setup
        return f"{setup.model.name}, {self.strategy}, {setup.gpus} x {setup.gpu.name}"


def _found_by(find: Callable[[Any], object]) -> BeforeValidator:
    """Return the validator of a value that `find` looks up."""

    def look_up(value: Any) -> object:
        try:
            return find(value)
        except UserError as error:
            first = error.problems[0]
            raise ValueProblemError(first.message, first.hint) from error

    return BeforeValidator(look_up)


def _model(value: Any) -> ModelShape:
    if isinstance(value, dict):
        shape = shape_of(value, name=str(value.get("name", "measured model")), source="model")
        params = value.get("params")
        exact = params if isinstance(params, int) and params > 0 else None
        return replace(shape, exact_params=exact or shape.exact_params)
    text = str(value)
    return model_of_params(text) if text[:1].isdigit() else model_named(text)


def _gpu(value: Any) -> Gpu:
    if isinstance(value, str) and value:
        return gpu_named(value)
    raise UserError(
        "no GPU was measured", hint="run the script where there is one: a CPU says nothing of it"
    )


class _Setup(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: Annotated[InstanceOf[ModelShape], _found_by(_model)]
    gpu: Annotated[InstanceOf[Gpu], _found_by(_gpu)] = Field(default="", validate_default=True)
    gpus: _Count
    gpus_per_node: _Count | None = None
    strategy: Annotated[InstanceOf[Strategy], _found_by(lambda text: strategy_named(str(text)))]
    seq: _Count
    micro_batch: _Count
    accumulation: _Count = 1
    tp: _Count = 1
    pp: _Count = 1
    vpp: _Count = 1
    cp: _Count = 1
    ep: _Count = 1
    precision: Precision | None = None
    checkpointing: Checkpointing | None = None
    loss: Loss = Loss.EAGER
    optimizer: Optimizer = Optimizer.ADAMW
    compiled: _Switch = Field(default=False, alias="compile")
    no_sync: _Switch = False
    flash_attention: _Switch = True
    offload_activations: _Switch = False
    lora_rank: _Count | None = None
    interconnect: Annotated[
        InstanceOf[Network] | None, _found_by(lambda text: interconnect_named(str(text)))
    ] = None


class _File(BaseModel):
    setup: _Setup
    allocated_bytes: _Figure | None = None
    reserved_bytes: _Figure | None = None
    device_bytes: _Figure | None = None
    step_s: _Figure | None = None
    all_reduce: tuple[AllReduce, ...] = ()


_KEYS = {field.alias or name for name, field in _Setup.model_fields.items()}
_AS_SAID = (
    *("model", "gpu", "gpus", "seq", "micro_batch", "vpp", "cp", "ep", "precision"),
    *("optimizer", "loss", "flash_attention", "compiled", "no_sync"),
)


def read_measurement(path: Path) -> Measurement:
    """Read a file that a script wrote with `--measure`.

    Raises:
        UserError: the file cannot be read or is of another sort, or values in it make no sense;
            all of them at once.
    """
    with files.explained(path, "read"):
        text = path.read_text(encoding="utf-8", errors="replace")
    try:
        document = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", None)
        where = Position(source=str(path), line=line)
        raise UserError(f"this is not valid JSON: {error}", position=where) from error
    return parse_measurement(document, source=str(path))


def parse_measurement(document: object, *, source: str) -> Measurement:
    """Return the measurement in a parsed document; `source` names it in errors.

    Raises:
        UserError: as `read_measurement`.
    """
    where = Position(source=source)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UserError(
            f'this is not a measurement: `"schema": {SCHEMA}` is missing',
            hint="the scripts in examples/ write one with --measure FILE",
            position=where,
        )
    try:
        read = _File.model_validate(_without_nulls(document))
    except ValidationError as error:
        problems = map(_problem, error.errors(include_url=False))
        raise UserError(problems=[replace(one, position=where) for one in problems]) from None
    contradictions = [replace(problem, position=where) for problem in _contradictions(read)]
    if contradictions:
        raise UserError(problems=contradictions)
    figures = {name: getattr(read, name) for name in _File.model_fields if name != "setup"}
    given = document["setup"]
    network = given.get("interconnect")
    strategy = str(given["strategy"])
    return Measurement(setup=_setup(read.setup, network), strategy=strategy, **figures)


def _without_nulls(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document without what is null, which is to say: without what was not given."""
    setup = document.get("setup")
    if isinstance(setup, dict):
        setup = {key: value for key, value in setup.items() if value is not None}
    found = {**document, "setup": setup}
    return {key: value for key, value in found.items() if value is not None}


def _problem(detail: ErrorDetails) -> Problem:
    *_, name = map(str, detail["loc"])
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return Problem(message=f"unknown key {name!r}", key=key[1:], hint=choices_hint(name, _KEYS))
    message, hint = complaint(detail, name)
    if detail["type"] == "missing":
        message = f"{name} is missing"
    return Problem(message=message, key=key[1:], hint=hint)


def _contradictions(read: _File) -> Iterator[Problem]:
    """Yield what contradicts itself: of the figures of memory, each holds the one before it."""
    setup = read.setup
    if setup.gpus % (setup.tp * setup.pp * setup.cp):
        message = f"{setup.gpus} GPUs are not a multiple of tp x pp x cp"
        yield Problem(message=message, key="setup.gpus")
    if setup.lora_rank is not None and setup.strategy.adapter is None:
        message = "the strategy has no adapter"
        yield Problem(message=message, key="setup.lora_rank", hint="lora or qlora")
    if not (read.allocated_bytes or read.step_s or read.all_reduce):
        yield Problem(message="nothing was measured: no allocated_bytes, no step_s, no all_reduce")
    sizes = (
        ("allocated_bytes", read.allocated_bytes),
        ("reserved_bytes", read.reserved_bytes),
        ("device_bytes", read.device_bytes),
        ("the memory of the GPU", setup.gpu.memory_gb * GIB),
    )
    known = [(name, size) for name, size in sizes if size is not None]
    for (name, size), (outer, more) in pairwise(known):
        # A process holds some memory beside that of torch: what nvidia-smi shows is never the same.
        if size > more or (size == more and outer == "device_bytes"):
            message = f"{size / 1e9:.4g} GB is not below {outer}, {more / 1e9:.4g} GB"
            yield Problem(message=message, key=name)
    if read.allocated_bytes is None:
        for name, size in known[:-1]:
            message = f"{size / 1e9:.4g} GB says nothing without allocated_bytes"
            yield Problem(message=message, key=name)


def _setup(given: _Setup, network: str | None) -> Setup:
    chosen = given.strategy
    adapter = chosen.adapter
    if adapter is not None and given.lora_rank is not None:
        adapter = replace(adapter, rank=given.lora_rank)
    ranks = given.tp * given.pp * given.cp
    request = Request(
        **{name: getattr(given, name) for name in _AS_SAID},
        gpus_per_node=given.gpus_per_node or min(given.gpus, 8),
        global_batch=given.micro_batch * given.accumulation * (given.gpus // ranks),
        tp=chosen.tp or given.tp,
        pp=chosen.pp or given.pp,
        checkpointing=given.checkpointing or chosen.checkpointing,
        adapter=adapter,
        interconnect=network,
    )
    return replace(setup_of(chosen, request), offload_activations=given.offload_activations)
