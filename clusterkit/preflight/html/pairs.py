"""What was measured between every two nodes, packed for a page that draws it.

1,600 nodes are 2.6 million pairs: each is one byte, a step on a logarithmic scale, and the whole is
deflated. A page with two such maps has about 4 MB.
"""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from heapq import nlargest
from typing import Any

FAILED = -1.0
"""The pair was tried and nothing went through."""

_FAILED_CODE, _STEPS = 255, 253
"""Codes 1 to 254 are values, lowest first; 0 was not measured."""
_SLOWEST = 8
_NOTABLE = 1.25
"""Times worse than the median from which a pair or a node is listed by name."""


@dataclass(frozen=True, kw_only=True)  # no slots: cached_property needs a __dict__
class PairMatrix:
    """One figure for ordered pairs of nodes, those that were measured."""

    title: str
    unit: str
    more_is_better: bool
    nodes: tuple[str, ...]
    pairs: array[int]
    """Index of the node from which, times the number of nodes, plus index of the node to which."""
    values: array[float]
    """One for each of `pairs`: positive, or `FAILED`; at least one is positive."""

    @cached_property
    def known(self) -> array[float]:
        """All values that were measured, sorted."""
        return array("d", sorted(value for value in self.values if value > 0))

    @cached_property
    def median(self) -> float:
        """The middle of all values that were measured."""
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
    codes = bytearray(len(matrix.nodes) ** 2)
    for pair, value in zip(matrix.pairs, matrix.values, strict=True):
        codes[pair] = _code(value, low, span)
    return {
        "unit": matrix.unit,
        "more": matrix.more_is_better,
        "size": len(matrix.nodes),
        "nodes": matrix.nodes,
        "low": low,
        "step": span / _STEPS,
        "median": matrix.median,
        "cells": base64.b64encode(zlib.compress(codes, 9)).decode(),
    }


def _code(value: float, low: float, span: float) -> int:
    if value == FAILED:
        return _FAILED_CODE
    return 1 + round(math.log(value / low) / span * _STEPS)


def slow_pairs(matrix: PairMatrix) -> tuple[Slow, ...]:
    """Return the worst pairs, those that failed first; empty where none is far from the median."""
    found = nlargest(_SLOWEST, _notable(matrix))
    size = len(matrix.nodes)
    return tuple(
        Slow(
            name=f"{matrix.nodes[pair // size]} \u2192 {matrix.nodes[pair % size]}",
            figure=_figure(matrix, value),
            times=_times(times),
        )
        for times, pair, value in ((t, -p, v) for t, p, v in found)
    )


def _notable(matrix: PairMatrix) -> Iterator[tuple[float, int, float]]:
    """Yield times worse, the negative of the pair so that the first nodes come first, value."""
    for pair, value in zip(matrix.pairs, matrix.values, strict=True):
        times = math.inf if value == FAILED else matrix.times_worse(value)
        if times > _NOTABLE:
            yield times, -pair, value


def slow_nodes(matrix: PairMatrix) -> tuple[Slow, ...]:
    """Return the nodes whose own median, over all pairs with them, is far from that of all."""
    size = len(matrix.nodes)
    own: list[list[float]] = [[] for _ in range(size)]
    for pair, value in zip(matrix.pairs, matrix.values, strict=True):
        if value > 0:
            own[pair // size].append(value)
            own[pair % size].append(value)
    middles = [
        (sorted(values)[len(values) // 2], node) for node, values in enumerate(own) if values
    ]
    found = ((matrix.times_worse(middle), -node, middle) for middle, node in middles)
    return tuple(
        Slow(name=matrix.nodes[-node], figure=_figure(matrix, middle), times=_times(times))
        for times, node, middle in nlargest(_SLOWEST, found)
        if times > _NOTABLE
    )


def _figure(matrix: PairMatrix, value: float) -> str:
    return "nothing went through" if value == FAILED else f"{value:.3g} {matrix.unit}"


def _times(times: float) -> str:
    return "" if math.isinf(times) else f"{times:.1f} times"
