"""A result beside what was expected of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusterkit.observe.bench.allreduce.expected import (
    Assumption,
    Place,
    assumed,
    place_of,
    published,
)
from clusterkit.observe.bench.allreduce.operations import Operation
from clusterkit.observe.bench.allreduce.result import Measured, Result
from clusterkit.preflight.expected_busbw import LEAST_BYTES, Published


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was measured, and what it is compared with."""

    result: Result
    place: Place | None
    assumptions: Mapping[Operation, Assumption]
    """Of the largest message of each collective."""
    published: Published | None
    """For all-reduces on the same hardware."""

    @property
    def published_share(self) -> float | None:
        """The best large all-reduce over what is published; None where there is none of either."""
        reduced = self.result.of(Operation.ALL_REDUCE)
        large = [one.busbw for one in reduced if one.bytes >= LEAST_BYTES]
        if self.published is None or not large:
            return None
        return max(large) / (self.published.gbs * 1e9)


def answer(result: Result, *, interconnect: str | None, gpu: str | None) -> Answer:
    """Return a result with what `estimate` assumes and what is published.

    Raises:
        UserError: `interconnect` or `gpu` names nothing that is known.
    """
    place = place_of(result, interconnect, gpu)
    found = {
        op: assumption
        for op in result.operations
        if (assumption := assumed(result, result.large(op), place, interconnect)) is not None
    }
    return Answer(result=result, place=place, assumptions=found, published=published(result, place))


def document(found: Answer) -> dict[str, Any]:
    """Return what `--json` tells, without the job."""
    result, known = found.result, found.published
    return {
        "source": result.source,
        "backend": result.backend,
        "device": result.device,
        "versions": result.versions,
        "nodes": result.nodes,
        "node_count": result.node_count,
        "ranks": result.ranks,
        "complete": result.complete,
        "correct": result.correct,
        "failed_with": result.error,
        "wrong": result.wrong,
        "suspects": result.suspects,
        "measured": [_row(one) for one in result.measured],
        "left_out": result.left_out,
        "best": {op.value: _row(result.best(op)) for op in result.operations},
        "large": {op.value: _row(result.large(op)) for op in result.operations},
        "expected": {
            "estimate": {
                op.value: {
                    "bytes": one.bytes,
                    "busbw_gbs": one.busbw / 1e9,
                    "share": one.share,
                    "over": one.over,
                }
                for op, one in found.assumptions.items()
            },
            "published": None
            if known is None
            else {
                "busbw_gbs": known.gbs,
                "share": found.published_share,
                "system": known.system,
                "source": known.source,
            },
        },
    }


def empty_document() -> dict[str, Any]:
    """Return what `--json` tells where nothing was measured: all keys of `document`."""
    nothing = Result(
        source="",
        backend="",
        device=None,
        ranks=None,
        nodes=(),
        node_count=None,
        measured=(),
        correct=None,
        complete=False,
    )
    told = document(Answer(result=nothing, place=None, assumptions={}, published=None))
    return {**told, "source": None, "backend": None}


def _row(one: Measured) -> dict[str, Any]:
    spread = {"fastest": one.fastest, "slowest": one.slowest}
    return {
        "op": one.op,
        "bytes": one.bytes,
        "seconds": one.seconds,
        "algbw_gbs": one.algbw / 1e9,
        "busbw_gbs": one.busbw / 1e9,
        **{f"{name}_busbw_gbs": rate and rate / 1e9 for name, rate in spread.items()},
        "repeats": one.repeats,
        "iterations": one.iterations,
    }
