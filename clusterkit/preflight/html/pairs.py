"""What was measured between every two nodes, packed for a page that draws it.

1,600 nodes are 2.6 million pairs: each is one byte, a step on a logarithmic scale, and the whole is
deflated. A page with two such maps has about 4 MB.
"""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from clusterkit.preflight.checks.base import Evidence
from clusterkit.preflight.checks.net_evidence import Pair, read_links

FAILED = -1.0
"""The pair was tried and nothing went through."""

_FAILED_CODE, _STEPS = 255, 253
"""Codes 1 to 254 are values, lowest first; 0 was not measured."""
_FINEST = 0.01
"""Smallest step: 1 %. A finer one would show noise, and noise does not deflate."""


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


def packed(matrix: PairMatrix) -> dict[str, Any]:
    """Return `matrix` as report.js reads it."""
    low, high = matrix.known[0], matrix.known[-1]
    step = max(math.log(high / low) / _STEPS, _FINEST)
    codes = bytearray(len(matrix.nodes) ** 2)
    for pair, value in zip(matrix.pairs, matrix.values, strict=True):
        step_up = 0 if value == FAILED else round(math.log(value / low) / step)
        codes[pair] = _FAILED_CODE if value == FAILED else 1 + step_up
    return {
        "unit": matrix.unit,
        "more": matrix.more_is_better,
        "size": len(matrix.nodes),
        "nodes": matrix.nodes,
        "low": low,
        "step": step,
        "median": matrix.median,
        "cells": base64.b64encode(zlib.compress(codes, 9)).decode(),
    }


def matrices(evidence: Evidence, names: tuple[str, ...]) -> tuple[PairMatrix, ...]:
    """Return bandwidth and latency between the nodes `names`, those of the two that are known."""
    links = read_links(evidence)
    gbit = {pair: rate * 8 / 1e9 for pair, rate in links.rates.items()}
    # A round trip has no direction; the node that called tells it.
    there = {pair: float(us) for pair, us in links.latencies_us.items()}
    back = {(b, a): us for (a, b), us in there.items()}
    found = (
        ("Bandwidth", "Gbit/s", True, gbit),
        ("Latency", "\u00b5s", False, back | there),
    )
    return tuple(
        _matrix(names, title, unit, more_is_better=more, figures=figures, broken=links.broken)
        for title, unit, more, figures in found
        if any(figures.values())
    )


def _matrix(
    names: tuple[str, ...],
    title: str,
    unit: str,
    *,
    more_is_better: bool,
    figures: Mapping[Pair, float],
    broken: Mapping[Pair, str],
) -> PairMatrix:
    places = {name: place for place, name in enumerate(names)}
    known = dict.fromkeys(broken, FAILED) | {pair: v for pair, v in figures.items() if v > 0}
    cells = {
        places[a] * len(names) + places[b]: value
        for (a, b), value in known.items()
        if a in places and b in places and a != b
    }
    return PairMatrix(
        title=title,
        unit=unit,
        more_is_better=more_is_better,
        nodes=names,
        pairs=array("Q", cells),
        values=array("d", cells.values()),
    )
