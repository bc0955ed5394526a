"""A result that was measured before: what our program wrote down, or nccl-tests printed.

templates/programs/collectives/clusterkit_collectives.py writes:

    {"schema": 1, "kind": "clusterkit-collectives", "complete": true, "backend": "gloo",
     "device": "cpu", "nodes": ["n1", "n2"], "torch": "2.9.0",
     "group": {"over": "tp", "ranks": 2, "stride": 1},
     "measured": [{"op": "all_reduce", "bytes": 1048576, "seconds": [0.09, 0.1], "iterations": 4}],
     "wrong": [{"op": .., "bytes": .., "elements": 3, "rank": 1, "node": "n2", "detail": ".."}],
     "left_out": [{"op": .., "bytes": .., "why": ".."}]}

`group` is there where groups of a layout were measured. `nodes` has the node of each rank,
`seconds` one collective of each repeat. Where nccl-tests ran,
`nccl_tests` has the text of each of its programs instead of `measured`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Annotated, Any, BinaryIO, Literal, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from clusterkit.core import files
from clusterkit.core.errors import Position, UserError
from clusterkit.observe.bench.allreduce.result import (
    MEASURED,
    Groups,
    LeftOut,
    Measured,
    Operation,
    Result,
    Wrong,
)
from clusterkit.preflight.probes.gpu.nccl_tests import NcclTest, Row, parse_each
from clusterkit.transport.probe import Unparsed

KIND = "clusterkit-collectives"
FILE = "collectives.json"
"""Its name in the folder of results."""
_MOST_BYTES = 16 << 20
"""A sweep over all sizes on thousands of ranks prints less than a megabyte."""
_HINT = "all_reduce_perf ... | clusterkit bench collectives --from -"


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


class _Group(BaseModel):
    over: Literal["tp", "cp", "ep", "dp", "pp"]
    ranks: _Whole
    stride: _Whole


class _Document(BaseModel):
    nodes: list[str] = []
    device: str | None = None
    complete: Any = False


class _OfTorch(_Document):
    backend: str | None = None
    torch: str | None = None
    nccl: str | None = None
    group: _Group | None = None
    measured: list[_MeasuredRow]
    wrong: list[_WrongRow]
    left_out: list[_LeftOutRow]


class _OfNcclTests(_Document):
    nccl_tests: Annotated[dict[_Op, str], Field(min_length=1)]


_Model = TypeVar("_Model", bound=BaseModel)
_Read = TypeVar("_Read")


def read_result(stream: BinaryIO, *, source: str) -> Result:
    """Return the result in `stream`; `source` names it in errors.

    Raises:
        UserError: it is neither output of nccl-tests nor a document of ours, or too large.
    """
    data = stream.read(_MOST_BYTES + 1)
    where = Position(source=source)
    if len(data) > _MOST_BYTES:
        message = f"more than {_MOST_BYTES >> 20} MiB: this is not output of nccl-tests"
        raise UserError(message, hint=_HINT, position=where)
    if b"\0" in data:
        message = "a binary file: this is not output of nccl-tests"
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
    if "nccl_tests" in document:
        return _of_nccl_tests(checked(_OfNcclTests, document, kind=KIND))
    return _of_torch(checked(_OfTorch, document, kind=KIND))


def checked(model: type[_Model], document: Mapping[str, Any], *, kind: str) -> _Model:
    """Return what a program of ours has written down.

    Raises:
        Unparsed: it is another document, or damaged.
    """
    if document.get("kind") != kind or document.get("schema") != 1:
        raise Unparsed(f"its kind is {reprlib.repr(document.get('kind'))} and not {kind}")
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


class _OnNode(Protocol):
    @property
    def node(self) -> str: ...


def of_ranks(
    ranks: Sequence[_OnNode | None], names: Sequence[str | None] | None
) -> Sequence[str | None]:
    """Return the node of each rank as the job knows it (None where it does not).

    Where the job knows any, the document has to be of these ranks.

    Raises:
        Unparsed: it is of others.
    """
    if names is None:
        return [None] * len(ranks)
    if len(names) != len(ranks):
        raise Unparsed(f"it is of {len(ranks)} ranks, and the job has {len(names)}")
    for rank, one in enumerate(ranks):
        if one and names[rank] not in {None, one.node}:
            raise Unparsed(f"rank {rank} is on {names[rank]}, and says {reprlib.repr(one.node)}")
    return names


def read_ours(
    stream: BinaryIO, read: Callable[[Mapping[str, Any], None], _Read], *, source: str, file: str
) -> _Read:
    """Return what `read` makes of a document that a program of ours has left in `file`.

    Raises:
        UserError: it is none, or too large; `source` names it.
    """
    data = stream.read(_MOST_BYTES + 1)
    document = files.parse_json(data) if len(data) <= _MOST_BYTES else None
    try:
        return read(document or {}, None)
    except Unparsed as error:
        hint = f"{file} in the folder of results of a run, or that run's folder"
        where = Position(source=source)
        raise UserError(f"cannot read this: {error}", hint=hint, position=where) from error


def _damaged(place: str, value: Any) -> Unparsed:
    if value is None:
        return Unparsed(f"{place} is missing")
    return Unparsed(f"{place} is damaged: {reprlib.repr(value)}")


def _of_torch(document: _OfTorch) -> Result:
    by_rank, complete = document.nodes, document.complete is True
    if document.measured and not by_rank:
        raise _damaged("nodes", by_rank)
    group = document.group
    if group is not None and len(by_rank) % (group.ranks * group.stride):
        raise _damaged("group", group.ranks)
    ranks = len(by_rank) if group is None else group.ranks
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
        groups=None if group is None else Groups(**dict(group)),
        measured=tuple(_measured(one, ranks) for one in document.measured),
        correct=False if wrong else True if complete else None,
        wrong=wrong,
        suspects=tuple(dict.fromkeys(one.node for one in wrong if one.node)),
        left_out=tuple(LeftOut(**dict(one)) for one in document.left_out),
        versions=tuple(f"{name} {found}" for name, found in versions if found),
        complete=complete,
    )


def _measured(row: _MeasuredRow, ranks: int) -> Measured:
    factor, size, usual = row.op.bus_factor(ranks), row.bytes, median(row.seconds)
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


_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "int", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}
_MOST_TOLD = 1024
"""Ranks up to which the ratio of two bandwidths may tell how many there were."""


def read_nccl_tests(text: str, *, called: Operation | None = None) -> Result:
    """Return the result that programs of nccl-tests have printed, one after the other.

    Which program it was is seen from the table where the text does not say it: the reduction, the
    root, and that elements are counted by rank where ranks share a message. With `called`, it was
    that one.

    Raises:
        Unparsed: it is no such output, or damaged, or that of another program; or the programs ran
            on different ranks.
    """
    runs = [_result(test, called) for test in parse_each(text)]
    ranks = {run.ranks for run in runs if run.ranks is not None}
    if len(ranks) > 1:
        counts = " and ".join(str(number) for number in sorted(ranks))
        raise Unparsed(f"runs on {counts} ranks: give one at a time")
    return joined(runs).on(ranks=next(iter(ranks), None), node_count=None)


def joined(runs: Sequence[Result]) -> Result:
    """Return runs on the same ranks as one; what the first says of ranks and nodes counts."""
    answers = [run.correct for run in runs]
    return replace(
        runs[0],
        measured=tuple(one for run in runs for one in run.measured),
        correct=False if False in answers else None if None in answers else True,
        wrong=tuple(one for run in runs for one in run.wrong),
        suspects=tuple(dict.fromkeys(node for run in runs for node in run.suspects)),
        complete=all(run.complete for run in runs),
        checked=all(run.checked for run in runs),
        error=next((run.error for run in runs if run.error is not None), None),
        perhaps=tuple(dict.fromkeys(op for run in runs for op in run.perhaps)),
    )


def _result(test: NcclTest, called: Operation | None) -> Result:
    rows = [row for row in test.rows if row.size and row.time_us]
    if test.rows and not rows:
        raise Unparsed("no message in its table has a size")
    op, *others = (called,) if called else _operations(test, rows)
    ranks = test.ranks or (_ranks(rows, op) if rows else None)
    all_listed = test.listed == test.ranks
    return Result(
        source="nccl-tests",
        backend="nccl",
        device=test.device,
        ranks=ranks,
        nodes=test.hosts if all_listed else (),
        node_count=len(test.hosts) if all_listed and test.hosts else None,
        measured=tuple(_as_printed(row, op, ranks) for row in rows),
        correct=test.correct,
        wrong=tuple(
            Wrong(op=op, bytes=row.size, elements=row.wrong) for row in test.rows if row.wrong
        ),
        suspects=test.failed if test.correct is False else (),
        complete=test.correct is not None or test.average_gb_s is not None,
        checked=any(row.checked for row in rows),
        error=test.error,
        perhaps=tuple(others),
    )


def _as_printed(row: Row, op: Operation, ranks: int | None) -> Measured:
    one = Measured.printed(
        op=op,
        size=row.size,
        seconds=row.time_us / 1e6,
        algbw=row.alg_gb_s * 1e9,
        busbw=row.bus_gb_s * 1e9,
    )
    if ranks is None and op.bus_factor(3) == 1:
        ranks = 3  # any number will do
    return one if ranks is None else one.between(ranks)


def _operations(test: NcclTest, rows: Sequence[Row]) -> tuple[Operation, ...]:
    """Return what ran, the most likely first: by its name, or else by what its table looks like.

    An all-to-all and a sendrecv are never in place, so nothing is checked there; an all-gather and
    an all-reduce are. Since 2.13 a sendrecv names a reduction. A gather and a scatter look alike.
    """
    named = _named(test.program)
    if named is None and test.program is not None:
        known = ", ".join(op.program for op in Operation)
        raise Unparsed(f"{test.program} is none of those that are read: {known}")
    if named is not None or not rows:
        return (named or Operation.ALL_REDUCE,)
    fitting = _fitting(rows[-1], test.ranks)
    called = _named(test.called)
    return (called,) if called in fitting else fitting


def _named(program: str | None) -> Operation | None:
    name = (program or "").removesuffix("_mpi")
    return next((op for op in Operation if op.program == name), None)


def _fitting(row: Row, ranks: int | None) -> tuple[Operation, ...]:
    """Return the collectives that print such a row, the most likely first."""
    reduces, rooted = row.operation not in {None, "", "none"}, row.root is not None
    shared = _parts(row) not in {1, None}
    never_in_place = row.checked and not row.in_place_checked
    if rooted and reduces:
        return (Operation.REDUCE,)
    if rooted:
        return (Operation.GATHER, Operation.SCATTER) if shared else (Operation.BROADCAST,)
    if reduces and shared:
        return (Operation.REDUCE_SCATTER,)
    if not shared:
        sends = not reduces or never_in_place
        return (Operation.SENDRECV,) if sends else _of_all_ranks(row, ranks)
    if row.operation == "" or never_in_place:
        return (Operation.ALLTOALL,)
    gathers = (Operation.ALL_GATHER, Operation.ALLTOALL)
    return gathers[:1] if row.checked or row.operation is None else gathers


def _of_all_ranks(row: Row, ranks: int | None) -> tuple[Operation, ...]:
    """Tell an all-reduce from a sendrecv that nobody checked; of two ranks they look alike."""
    if row.checked or row.alg_gb_s != row.bus_gb_s or row.alg_gb_s < 1:
        return (Operation.ALL_REDUCE,)
    both = (Operation.ALL_REDUCE, Operation.SENDRECV)
    return both if (ranks or 2) == 2 else both[1:]


def _parts(row: Row) -> int | None:
    """Return in how many parts ranks share a message; 1 where each has all of it."""
    width = _BYTES.get(row.type)
    covered = row.count * width if width else 0
    return row.size // covered if covered and row.size % covered == 0 else None


def _ranks(rows: Sequence[Row], op: Operation) -> int | None:
    """Return how many ranks there were, as far as the table tells."""
    peak = max(rows, key=lambda row: (row.bus_gb_s, row.alg_gb_s))
    if op is not Operation.ALL_REDUCE:
        return _parts(peak) if op.shared else None
    half = 0.005  # figures have two decimals
    low = (peak.bus_gb_s - half) / (peak.alg_gb_s + half)
    if peak.alg_gb_s <= half:
        return None
    high = (peak.bus_gb_s + half) / (peak.alg_gb_s - half)
    fit = [n for n in range(1, _MOST_TOLD + 1) if low <= op.bus_factor(n) <= high]
    return fit[0] if len(fit) == 1 else None
