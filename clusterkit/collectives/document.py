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

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from clusterkit.collectives.nccl_output import joined, read_nccl_tests
from clusterkit.collectives.operations import Operation
from clusterkit.collectives.result import LeftOut, Measured, Result, Wrong
from clusterkit.probes.base import Unparsed

KIND = "clusterkit-collectives"
FILE = "collectives.json"
"""Its name in the folder of results."""
_SCHEMA = 1


def read_document(document: Mapping[str, Any]) -> Result:
    """Return the result that our program has written down.

    Raises:
        Unparsed: it is another document, or damaged.
    """
    if document.get("kind") != KIND or document.get("schema") != _SCHEMA:
        raise Unparsed(f"its kind is {document.get('kind')!r} and not {KIND}")
    try:
        if "nccl_tests" in document:
            return _of_nccl_tests(document)
        return _of_torch(document)
    except (LookupError, TypeError, ValueError, ZeroDivisionError) as error:
        raise Unparsed(f"a figure is missing or damaged: {error!r}") from error


def _of_torch(document: Mapping[str, Any]) -> Result:
    by_rank = tuple(str(name) for name in document.get("nodes", ()))
    nodes = tuple(dict.fromkeys(by_rank))
    wrong = tuple(_wrong(one) for one in document["wrong"])
    versions = [f"{name} {document[name]}" for name in ("torch", "nccl") if document.get(name)]
    complete = document["complete"] is True
    return Result(
        source="torch",
        backend=str(document.get("backend", "")),
        device=_device(document),
        ranks=len(by_rank) or None,
        nodes=nodes,
        node_count=len(nodes) or None,
        measured=tuple(_measured(one, len(by_rank)) for one in document["measured"]),
        correct=False if wrong else True if complete else None,
        wrong=wrong,
        suspects=tuple(dict.fromkeys(one.node for one in wrong if one.node)),
        left_out=tuple(
            LeftOut(op=Operation(one["op"]), bytes=int(one["bytes"]), why=str(one["why"]))
            for one in document["left_out"]
        ),
        versions=tuple(versions),
        complete=complete,
    )


def _measured(found: Mapping[str, Any], ranks: int) -> Measured:
    op, size = Operation(found["op"]), int(found["bytes"])
    times: Sequence[float] = [float(seconds) for seconds in found["seconds"]]
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
        iterations=int(found["iterations"]),
    )


def _device(document: Mapping[str, Any]) -> str | None:
    device = document.get("device")
    if device is not None and not isinstance(device, str):
        raise ValueError(f"device {device!r}")
    return device


def _wrong(found: Mapping[str, Any]) -> Wrong:
    return Wrong(
        op=Operation(found["op"]),
        bytes=int(found["bytes"]),
        elements=int(found["elements"]),
        rank=int(found["rank"]),
        node=str(found["node"]),
        detail=str(found["detail"]),
    )


def _of_nccl_tests(document: Mapping[str, Any]) -> Result:
    runs = [
        _as_called(read_nccl_tests(str(text)), Operation(op))
        for op, text in document["nccl_tests"].items()
    ]
    by_rank = tuple(str(name) for name in document["nodes"])
    nodes = tuple(dict.fromkeys(by_rank))
    whole = joined(runs)
    return replace(
        whole,
        device=_device(document),
        ranks=len(by_rank),
        nodes=nodes,
        node_count=len(nodes),
        suspects=nodes if whole.correct is False else (),
    )


def _as_called(run: Result, op: Operation) -> Result:
    """Return a run as that of the program which was called, whatever its table looks like."""
    return replace(
        run,
        measured=tuple(replace(one, op=op) for one in run.measured),
        wrong=tuple(replace(one, op=op) for one in run.wrong),
    )
