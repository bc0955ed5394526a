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
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from clusterkit.core import files
from clusterkit.core.errors import Position, Problem, UserError, choices_hint
from clusterkit.estimate.factors import SCHEMA
from clusterkit.estimate.machines.gpus import gpu_named
from clusterkit.estimate.machines.interconnects import interconnect_named
from clusterkit.estimate.models.model_config import shape_of
from clusterkit.estimate.models.named import model_named, model_of_params
from clusterkit.estimate.request import Request, setup_of
from clusterkit.estimate.results import GIB
from clusterkit.estimate.setup import Checkpointing, Loss, Optimizer, Precision, Setup
from clusterkit.estimate.shapes import ModelShape
from clusterkit.estimate.strategies import strategy_named

T = TypeVar("T")
E = TypeVar("E", Checkpointing, Loss, Optimizer, Precision)

_KEYS = frozenset(
    {
        *("model", "gpu", "gpus", "gpus_per_node", "strategy", "precision", "seq"),
        *("micro_batch", "accumulation", "tp", "pp", "vpp", "cp", "ep", "checkpointing"),
        *("loss", "optimizer", "compile", "no_sync", "interconnect"),
        *("flash_attention", "offload_activations", "lora_rank"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """One measured size of an all-reduce."""

    bytes: float
    seconds: float
    ranks: int


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
        raise UserError(f"this is no JSON: {error}", position=where) from error
    return parse_measurement(document, source=str(path))


def parse_measurement(document: object, *, source: str) -> Measurement:
    """Return the measurement in a parsed document; `source` names it in errors.

    Raises:
        UserError: as `read_measurement`.
    """
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UserError(
            f'this is no measurement: `"schema": {SCHEMA}` is missing',
            hint="the scripts in examples/ write one with --measure FILE",
            position=Position(source=source),
        )
    reader = _Reader(source=source)
    said = document.get("setup")
    if not isinstance(said, dict):
        said = {}
        reader.refuse("there is no setup", key="setup")
    setup = _setup(reader, said, source=source)
    found = Measurement(
        setup=setup,
        strategy=str(said.get("strategy", "")),
        allocated_bytes=reader.figure(document, "allocated_bytes"),
        reserved_bytes=reader.figure(document, "reserved_bytes"),
        device_bytes=reader.figure(document, "device_bytes"),
        step_s=reader.figure(document, "step_s"),
        all_reduce=tuple(_all_reduces(reader, document.get("all_reduce") or ())),
    )
    if not (found.allocated_bytes or found.step_s or found.all_reduce):
        reader.refuse("nothing was measured: no allocated_bytes, no step_s, no all_reduce")
    _check_memory(reader, found)
    reader.check()
    return found


def _check_memory(reader: _Reader, found: Measurement) -> None:
    """Refuse figures of memory that contradict each other: each holds the one before it."""
    sizes = (
        ("allocated_bytes", found.allocated_bytes),
        ("reserved_bytes", found.reserved_bytes),
        ("device_bytes", found.device_bytes),
        ("the memory of the GPU", found.setup.gpu.memory_gb * GIB),
    )
    known = [(name, size) for name, size in sizes if size is not None]
    for (name, size), (outer, more) in pairwise(known):
        # A process holds some memory beside that of torch: what nvidia-smi shows is never the same.
        if size > more or (size == more and outer == "device_bytes"):
            reader.refuse(
                f"{size / 1e9:.4g} GB is not below {outer}, {more / 1e9:.4g} GB", key=name
            )
    if found.allocated_bytes is None:
        for name, size in known[:-1]:
            reader.refuse(f"{size / 1e9:.4g} GB says nothing without allocated_bytes", key=name)


@dataclass(frozen=True, slots=True)
class _Reader:
    source: str
    problems: list[Problem] = field(default_factory=list)

    def refuse(self, message: str, *, key: str | None = None, hint: str | None = None) -> None:
        where = Position(source=self.source)
        self.problems.append(Problem(message=message, hint=hint, key=key, position=where))

    def check(self) -> None:
        if self.problems:
            raise UserError(problems=tuple(self.problems))

    def take(self, key: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except UserError as error:
            for problem in error.problems:
                self.refuse(problem.message, key=key, hint=problem.hint)
            return None

    def figure(self, document: Mapping[str, Any], key: str) -> float | None:
        value = document.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not _positive(value):
            self.refuse(f"{value!r} is no number above 0", key=key)
            return None
        return float(value)

    def count(self, document: Mapping[str, Any], key: str, otherwise: int | None) -> int:
        value = document.get(key, otherwise)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            missing = "is missing" if value is None else f"{value!r} is no number from 1 on"
            self.refuse(missing, key=f"setup.{key}")
            return 1
        return value

    def switch(self, document: Mapping[str, Any], key: str, otherwise: bool) -> bool:
        value = document.get(key)
        if value is not None and not isinstance(value, bool):
            self.refuse(f"{value!r} is neither true nor false", key=f"setup.{key}")
        return otherwise if value is None else bool(value)


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _setup(reader: _Reader, said: Mapping[str, Any], *, source: str) -> Setup:
    for key in said.keys() - _KEYS:
        reader.refuse("unknown key", key=f"setup.{key}", hint=choices_hint(key, _KEYS))
    model = reader.take("setup.model", lambda: _model(said.get("model"), source=source))
    gpu = reader.take("setup.gpu", lambda: gpu_named(_gpu_text(said.get("gpu"))))
    chosen = reader.take("setup.strategy", lambda: strategy_named(str(said.get("strategy", ""))))
    gpus = reader.count(said, "gpus", None)
    ranks = {name: reader.count(said, name, 1) for name in ("tp", "pp", "vpp", "cp", "ep")}
    micro_batch = reader.count(said, "micro_batch", None)
    steps = reader.count(said, "accumulation", 1)
    seq = reader.count(said, "seq", None)
    per_node = reader.count(said, "gpus_per_node", min(gpus, 8))
    if gpus % (ranks["tp"] * ranks["pp"] * ranks["cp"]):
        reader.refuse(f"{gpus} GPUs are not a multiple of tp x pp x cp", key="setup.gpus")
    network = said.get("interconnect")
    if network is not None:
        reader.take("setup.interconnect", lambda: interconnect_named(str(network)))
    precision = _choice(reader, said, "precision", Precision)
    checkpointing = _choice(reader, said, "checkpointing", Checkpointing)
    loss = _choice(reader, said, "loss", Loss)
    optimizer = _choice(reader, said, "optimizer", Optimizer)
    reader.check()
    if model is None or gpu is None or chosen is None:  # refused above
        raise UserError("nothing was measured")
    data_ranks = gpus // (ranks["tp"] * ranks["pp"] * ranks["cp"])
    request = Request(
        model=model,
        gpu=gpu,
        gpus=gpus,
        gpus_per_node=per_node,
        seq=seq,
        micro_batch=micro_batch,
        global_batch=micro_batch * steps * data_ranks,
        tp=chosen.tp or ranks["tp"],
        pp=chosen.pp or ranks["pp"],
        vpp=ranks["vpp"],
        cp=ranks["cp"],
        ep=ranks["ep"],
        precision=precision,
        optimizer=optimizer or Optimizer.ADAMW,
        checkpointing=checkpointing or chosen.checkpointing,
        loss=loss or Loss.EAGER,
        adapter=chosen.adapter,
        compiled=reader.switch(said, "compile", False),
        no_sync=reader.switch(said, "no_sync", False),
        interconnect=network,
    )
    rank = reader.count(said, "lora_rank", chosen.adapter.rank if chosen.adapter else 1)
    if "lora_rank" in said and chosen.adapter is None:
        reader.refuse("the strategy has no adapter", key="setup.lora_rank", hint="lora or qlora")
    setup = setup_of(chosen, request)
    return replace(
        setup,
        adapter=None if setup.adapter is None else replace(setup.adapter, rank=rank),
        flash_attention=reader.switch(said, "flash_attention", setup.flash_attention),
        offload_activations=reader.switch(said, "offload_activations", setup.offload_activations),
    )


def _choice(reader: _Reader, said: Mapping[str, Any], key: str, kind: type[E]) -> E | None:
    value = said.get(key)
    if value is None:
        return None
    names = [str(member) for member in kind]
    if value not in names:
        reader.refuse(
            f"unknown: {value!r}", key=f"setup.{key}", hint=choices_hint(str(value), names)
        )
        return None
    return kind(value)


def _gpu_text(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise UserError(
        "no GPU was measured", hint="run the script where there is one: a CPU says nothing of it"
    )


def _model(value: object, *, source: str) -> ModelShape:
    if isinstance(value, dict):
        shape = shape_of(value, name=str(value.get("name", "measured model")), source=source)
        params = value.get("params")
        exact = params if isinstance(params, int) and params > 0 else None
        return replace(shape, exact_params=exact or shape.exact_params)
    text = str(value or "")
    return model_of_params(text) if text[:1].isdigit() else model_named(text)


def _all_reduces(reader: _Reader, rows: object) -> Sequence[AllReduce]:
    if not isinstance(rows, list | tuple):
        reader.refuse("this is no list", key="all_reduce")
        return ()
    found = []
    for number, row in enumerate(rows):
        key = f"all_reduce[{number}]"
        if not isinstance(row, dict):
            reader.refuse("this is no object with bytes, seconds and ranks", key=key)
            continue
        size, seconds, ranks = (reader.figure(row, name) for name in ("bytes", "seconds", "ranks"))
        if size is None or seconds is None or ranks is None:
            reader.refuse("bytes, seconds or ranks are missing", key=key)
        else:
            found.append(AllReduce(bytes=size, seconds=seconds, ranks=int(ranks)))
    return found
