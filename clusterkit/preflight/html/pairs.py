"""What was measured between every two nodes, packed for a page that draws it.

1,600 nodes are 2.6 million pairs: each is one byte, a step on a logarithmic scale, and the whole is
deflated. A page with two such maps has about 4 MB.
"""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

NOT_MEASURED = math.nan
FAILED = -1.0
"""The pair was tried and nothing went through."""

_NO_CODE, _FAILED_CODE, _STEPS = 0, 255, 253
"""Codes 1 to 254 are values, lowest first."""
_SLOWEST = 8
_NOTABLE = 1.25
"""Times worse than the median from which a pair or a node is listed by name."""


@dataclass(frozen=True, kw_only=True)  # no slots: cached_property needs a __dict__
class PairMatrix:
    """One figure for every ordered pair of nodes."""

    title: str
    unit: str
    more_is_better: bool
    nodes: tuple[str, ...]
    values: Sequence[array[float]]
    """Row: from; column: to. Positive, `NOT_MEASURED` or `FAILED`."""

    @cached_property
    def known(self) -> array[float]:
        """All values that were measured, sorted."""
        return array("d", sorted(value for row in self.values for value in row if value > 0))

    @cached_property
    def median(self) -> float:
        """The middle of all values that were measured; at least one was."""
        return self.known[len(self.known) // 2]

    def times_worse(self, value: float) -> float:
        """Return how many times worse than the median a value is; below 1 it is better."""
        return self.median / value if self.more_is_better else value / self.median


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A pair, or a node, that is worse than most."""

    name: str
    figure: str
    times: str


def packed(matrix: PairMatrix) -> dict[str, Any]:
    """Return `matrix` as report.js reads it."""
    low, high = matrix.known[0], matrix.known[-1]
    span = math.log(high / low) or 1.0
    codes = bytearray()
    for row in matrix.values:
        codes += bytes(_code(value, low, span) for value in row)
    return {
        "unit": matrix.unit,
        "more": matrix.more_is_better,
        "size": len(matrix.nodes),
        "nodes": matrix.nodes,
        "low": low,
        "step": span / _STEPS,
        "median": matrix.median,
        "cells": base64.b64encode(zlib.compress(bytes(codes), 9)).decode(),
    }


def _code(value: float, low: float, span: float) -> int:
    if value > 0:
        return 1 + round(math.log(value / low) / span * _STEPS)
    return _FAILED_CODE if value == FAILED else _NO_CODE


def slow_pairs(matrix: PairMatrix) -> tuple[Slow, ...]:
    """Return the worst pairs, those that failed first; empty where none is far from the median."""
    found = sorted(_notable(matrix), reverse=True)[:_SLOWEST]
    return tuple(
        Slow(
            name=f"{matrix.nodes[a]} \u2192 {matrix.nodes[b]}",
            figure=_figure(matrix, value),
            times=_times(times),
        )
        for times, a, b, value in found
    )


def _notable(matrix: PairMatrix) -> Iterator[tuple[float, int, int, float]]:
    limit = matrix.median / _NOTABLE if matrix.more_is_better else matrix.median * _NOTABLE
    for a, row in enumerate(matrix.values):
        for b, value in enumerate(row):
            if value == FAILED:
                yield math.inf, a, b, value
            elif value > 0 and (value < limit) == matrix.more_is_better and value != limit:
                yield matrix.times_worse(value), a, b, value


def slow_nodes(matrix: PairMatrix) -> tuple[Slow, ...]:
    """Return the nodes whose own median, over all pairs with them, is far from that of all."""
    found = []
    for index, node in enumerate(matrix.nodes):
        own = [*matrix.values[index], *(row[index] for row in matrix.values)]
        measured = sorted(value for value in own if value > 0)
        if measured:
            middle = measured[len(measured) // 2]
            found.append((matrix.times_worse(middle), node, middle))
    notable = sorted((item for item in found if item[0] > _NOTABLE), reverse=True)[:_SLOWEST]
    return tuple(
        Slow(name=node, figure=_figure(matrix, middle), times=_times(times))
        for times, node, middle in notable
    )


def _figure(matrix: PairMatrix, value: float) -> str:
    return "nothing went through" if value == FAILED else f"{value:.3g} {matrix.unit}"


def _times(times: float) -> str:
    return "" if math.isinf(times) else f"{times:.1f} times"
