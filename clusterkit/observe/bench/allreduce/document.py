"""What templates/collectives/clusterkit_collectives.py wrote down, as a result.

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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from clusterkit.observe.bench.allreduce.nccl_output import joined, read_nccl_tests
from clusterkit.observe.bench.allreduce.operations import MEASURED, Operation
from clusterkit.observe.bench.allreduce.result import LeftOut, Measured, Result, Wrong
from clusterkit.transport.probe import Unparsed

KIND = "clusterkit-collectives"
FILE = "collectives.json"
"""Its name in the folder of results."""
_SCHEMA = 1
_MOST = 1 << 60
_LEAST_S, _MOST_S = 1e-9, 1e9
"""Figures outside of these are no measurement, and their quotients perhaps no numbers."""


def read_document(document: Mapping[str, Any]) -> Result:
    """Return the result that our program has written down.

    Raises:
        Unparsed: it is another document, or damaged.
    """
    if document.get("kind") != KIND or document.get("schema") != _SCHEMA:
        raise Unparsed(f"its kind is {reprlib.repr(document.get('kind'))} and not {KIND}")
    if "nccl_tests" in document:
        return _of_nccl_tests(document)
    return _of_torch(document)


def _of_torch(document: Mapping[str, Any]) -> Result:
    by_rank = _names(document)
    nodes = tuple(dict.fromkeys(by_rank))
    wrong = tuple(_wrong(one) for one in _rows(document, "wrong"))
    versions = [f"{name} {found}" for name in ("torch", "nccl") if (found := _text(document, name))]
    complete = document.get("complete") is True
    return Result(
        source="torch",
        backend=_text(document, "backend") or "",
        device=_text(document, "device"),
        ranks=len(by_rank) or None,
        nodes=nodes,
        node_count=len(nodes) or None,
        measured=tuple(_measured(one, len(by_rank)) for one in _rows(document, "measured")),
        correct=False if wrong else True if complete else None,
        wrong=wrong,
        suspects=tuple(dict.fromkeys(one.node for one in wrong if one.node)),
        left_out=tuple(
            LeftOut(op=one.operation(), bytes=one.whole("bytes"), why=one.text("why"))
            for one in _rows(document, "left_out")
        ),
        versions=tuple(versions),
        complete=complete,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """An object in a list of the document."""

    place: str
    """What errors call it: `measured[2]`."""
    found: Mapping[str, Any]

    def operation(self) -> Operation:
        return _operation(self.found.get("op"), f"{self.place}.op")

    def whole(self, name: str, *, least: int = 1) -> int:
        value = self.found.get(name)
        if type(value) is not int or not least <= value <= _MOST:
            raise _damaged(f"{self.place}.{name}", value)
        return value

    def text(self, name: str) -> str:
        value = self.found.get(name)
        if not isinstance(value, str):
            raise _damaged(f"{self.place}.{name}", value)
        return value

    def times(self, name: str) -> list[float]:
        value = self.found.get(name)
        if not isinstance(value, list) or not value:
            raise _damaged(f"{self.place}.{name}", value)
        for k, one in enumerate(value):
            if type(one) not in {int, float} or not _LEAST_S <= one <= _MOST_S:
                raise _damaged(f"{self.place}.{name}[{k}]", one)
        return [float(one) for one in value]


def _rows(document: Mapping[str, Any], name: str) -> list[_Row]:
    rows = document.get(name)
    if not isinstance(rows, list):
        raise _damaged(name, rows)
    for k, one in enumerate(rows):
        if not isinstance(one, dict):
            raise _damaged(f"{name}[{k}]", one)
    return [_Row(f"{name}[{k}]", one) for k, one in enumerate(rows)]


def _names(document: Mapping[str, Any]) -> tuple[str, ...]:
    names = document.get("nodes", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _damaged("nodes", names)
    return tuple(names)


def _operation(name: Any, place: str) -> Operation:
    found = next((op for op in MEASURED if op.value == name), None)
    if found is None:
        raise _damaged(place, name)
    return found


def _damaged(place: str, value: Any) -> Unparsed:
    if value is None:
        return Unparsed(f"{place} is missing")
    return Unparsed(f"{place} is damaged: {reprlib.repr(value)}")


def _measured(row: _Row, ranks: int) -> Measured:
    op, size, times = row.operation(), row.whole("bytes"), row.times("seconds")
    if not ranks:
        raise _damaged("nodes", [])
    factor = op.bus_factor(ranks)
    usual = median(times)
    return Measured(
        op=op,
        bytes=size,
        seconds=usual,
        algbw=size / usual,
        busbw=size / usual * factor,
        fastest=size / min(times) * factor,
        slowest=size / max(times) * factor,
        repeats=len(times),
        iterations=row.whole("iterations"),
    )


def _text(document: Mapping[str, Any], name: str) -> str | None:
    text = document.get(name)
    if text is not None and not isinstance(text, str):
        raise _damaged(name, text)
    return text


def _wrong(row: _Row) -> Wrong:
    return Wrong(
        op=row.operation(),
        bytes=row.whole("bytes"),
        elements=row.whole("elements"),
        rank=row.whole("rank", least=0),
        node=row.text("node"),
        detail=row.text("detail"),
    )


def _of_nccl_tests(document: Mapping[str, Any]) -> Result:
    texts = document["nccl_tests"]
    if not isinstance(texts, dict) or not texts:
        raise _damaged("nccl_tests", texts)
    runs = [_run(op, text) for op, text in texts.items()]
    by_rank = _names(document)
    if not by_rank:
        raise _damaged("nodes", [])
    nodes = tuple(dict.fromkeys(by_rank))
    whole = joined(runs).on(ranks=len(by_rank), node_count=len(nodes))
    return replace(
        whole,
        device=_text(document, "device"),
        ranks=len(by_rank),
        nodes=nodes,
        node_count=len(nodes),
        suspects=nodes if whole.correct is False else (),
    )


def _run(op: str, text: Any) -> Result:
    place = f"nccl_tests.{op}"
    called = _operation(op, place)
    if not isinstance(text, str):
        raise _damaged(place, text)
    try:
        return read_nccl_tests(text, called=called)
    except Unparsed as error:
        raise Unparsed(f"{place}: {error}") from error
