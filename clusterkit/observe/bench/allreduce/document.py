"""A result that was measured before: what our program wrote down, or nccl-tests printed.

templates/programs/collectives/clusterkit_collectives.py writes:

    {"schema": 1, "kind": "clusterkit-collectives", "complete": true, "backend": "gloo",
     "device": "cpu", "nodes": ["n1", "n2"], "torch": "2.9.0",
     "measured": [{"op": "all_reduce", "bytes": 1048576, "seconds": [0.09, 0.1], "iterations": 4}],
     "wrong": [{"op": .., "bytes": .., "elements": 3, "rank": 1, "node": "n2", "detail": ".."}],
     "left_out": [{"op": .., "bytes": .., "why": ".."}]}

`nodes` has the node of each rank, `seconds` one collective of each repeat. Where nccl-tests ran,
`nccl_tests` has the text of each of its programs instead of `measured`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Annotated, Any, BinaryIO, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from clusterkit.core import files
from clusterkit.core.errors import Position, UserError
from clusterkit.observe.bench.allreduce.nccl_output import joined, read_nccl_tests
from clusterkit.observe.bench.allreduce.result import (
    MEASURED,
    LeftOut,
    Measured,
    Operation,
    Result,
    Wrong,
)
from clusterkit.transport.probe import Unparsed

KIND = "clusterkit-collectives"
FILE = "collectives.json"
"""Its name in the folder of results."""
_SCHEMA = 1
_MOST_BYTES = 16 << 20
"""A sweep over all sizes on thousands of ranks prints less than a megabyte."""
_HINT = "all_reduce_perf ... | clusterkit bench allreduce --from -"


def _ours(op: Operation) -> Operation:
    if op not in MEASURED:
        raise ValueError("not measured by us")
    return op


_Op = Annotated[Operation, AfterValidator(_ours)]
_Whole = Annotated[int, Field(strict=True, ge=1, le=1 << 60)]
_Seconds = Annotated[float, Field(strict=True, ge=1e-9, le=1e9, allow_inf_nan=False)]
"""Figures outside of these are no measurement, and their quotients perhaps no numbers."""


class _MeasuredRow(BaseModel):
    op: _Op
    bytes: _Whole
    iterations: _Whole
    seconds: Annotated[list[_Seconds], Field(min_length=1)]


class _WrongRow(BaseModel):
    op: _Op
    bytes: _Whole
    elements: _Whole
    rank: Annotated[int, Field(strict=True, ge=0, le=1 << 60)]
    node: str
    detail: str


class _LeftOutRow(BaseModel):
    op: _Op
    bytes: _Whole
    why: str


class _Document(BaseModel):
    nodes: list[str] = []
    device: str | None = None
    complete: Any = False


class _OfTorch(_Document):
    backend: str | None = None
    torch: str | None = None
    nccl: str | None = None
    measured: list[_MeasuredRow]
    wrong: list[_WrongRow]
    left_out: list[_LeftOutRow]


class _OfNcclTests(_Document):
    nccl_tests: Annotated[dict[_Op, str], Field(min_length=1)]


_Model = TypeVar("_Model", bound=BaseModel)


def read_result(stream: BinaryIO, *, source: str) -> Result:
    """Return the result in `stream`; `source` names it in errors.

    Raises:
        UserError: it is neither output of nccl-tests nor a document of ours, or too large.
    """
    data = stream.read(_MOST_BYTES + 1)
    where = Position(source=source)
    if len(data) > _MOST_BYTES:
        message = f"more than {_MOST_BYTES >> 20} MiB: this is no output of nccl-tests"
        raise UserError(message, hint=_HINT, position=where)
    if b"\0" in data:
        message = "a binary file: this is no output of nccl-tests"
        raise UserError(message, hint=_HINT, position=where)
    document = files.parse_json(data) if data.lstrip().startswith(b"{") else None
    try:
        if document is not None:
            return read_document(document)
        return read_nccl_tests(data.decode("utf-8", errors="replace"))
    except Unparsed as error:
        raise UserError(f"cannot read this: {error}", hint=_HINT, position=where) from error


def read_document(document: Mapping[str, Any]) -> Result:
    """Return the result that our program has written down.

    Raises:
        Unparsed: it is another document, or damaged.
    """
    if document.get("kind") != KIND or document.get("schema") != _SCHEMA:
        raise Unparsed(f"its kind is {reprlib.repr(document.get('kind'))} and not {KIND}")
    if "nccl_tests" in document:
        return _of_nccl_tests(_checked(_OfNcclTests, document))
    return _of_torch(_checked(_OfTorch, document))


def _checked(model: type[_Model], document: Mapping[str, Any]) -> _Model:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_context=False, include_url=False)[0]
        place = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}"
            for part in first["loc"]
            if part != "[key]"
        )
        missing = first["type"] == "missing" or first["input"] is None
        raise _damaged(place[1:], None if missing else first["input"]) from None


def _damaged(place: str, value: Any) -> Unparsed:
    if value is None:
        return Unparsed(f"{place} is missing")
    return Unparsed(f"{place} is damaged: {reprlib.repr(value)}")


def _of_torch(document: _OfTorch) -> Result:
    by_rank, complete = document.nodes, document.complete is True
    if document.measured and not by_rank:
        raise _damaged("nodes", by_rank)
    nodes = tuple(dict.fromkeys(by_rank))
    wrong = tuple(Wrong(**dict(one)) for one in document.wrong)
    versions = (("torch", document.torch), ("nccl", document.nccl))
    return Result(
        source="torch",
        backend=document.backend or "",
        device=document.device,
        ranks=len(by_rank) or None,
        nodes=nodes,
        node_count=len(nodes) or None,
        measured=tuple(_measured(one, by_rank) for one in document.measured),
        correct=False if wrong else True if complete else None,
        wrong=wrong,
        suspects=tuple(dict.fromkeys(one.node for one in wrong if one.node)),
        left_out=tuple(LeftOut(**dict(one)) for one in document.left_out),
        versions=tuple(f"{name} {found}" for name, found in versions if found),
        complete=complete,
    )


def _measured(row: _MeasuredRow, by_rank: Sequence[str]) -> Measured:
    factor, size, usual = row.op.bus_factor(len(by_rank)), row.bytes, median(row.seconds)
    return Measured(
        op=row.op,
        bytes=size,
        seconds=usual,
        algbw=size / usual,
        busbw=size / usual * factor,
        fastest=size / min(row.seconds) * factor,
        slowest=size / max(row.seconds) * factor,
        repeats=len(row.seconds),
        iterations=row.iterations,
    )


def _of_nccl_tests(document: _OfNcclTests) -> Result:
    runs = [_run(op, text) for op, text in document.nccl_tests.items()]
    by_rank = document.nodes
    if not by_rank:
        raise _damaged("nodes", by_rank)
    nodes = tuple(dict.fromkeys(by_rank))
    whole = joined(runs).on(ranks=len(by_rank), node_count=len(nodes))
    return replace(
        whole,
        device=document.device,
        ranks=len(by_rank),
        nodes=nodes,
        node_count=len(nodes),
        suspects=nodes if whole.correct is False else (),
    )


def _run(op: Operation, text: str) -> Result:
    try:
        return read_nccl_tests(text, called=op)
    except Unparsed as error:
        raise Unparsed(f"nccl_tests.{op.value}: {error}") from error
