"""Medians, percentiles and ratios of repeated measurements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

COULD_NOT = 2
"""How a benchmark ends where something could not be run."""


class BenchError(Exception):
    """Something could not be run, so there is no figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is told of one series of seconds."""

    median_s: float
    p90_s: float
    least_s: float
    runs: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Figures:
        """Summarise a series; the 90th percentile is the nearest rank."""
        ordered = sorted(seconds)
        return cls(
            median_s=statistics.median(ordered),
            p90_s=ordered[math.ceil(0.9 * len(ordered)) - 1],
            least_s=ordered[0],
            runs=len(ordered),
        )


def median_ratio(upper: Sequence[float], lower: Sequence[float]) -> float:
    """Return the median of the ratios of neighbours: both met the same load of the machine."""
    return statistics.median(a / b for a, b in zip(upper, lower, strict=True))


def in_words(ratios: Sequence[float]) -> str:
    """Return the ratios of the rounds, for the line below a table."""
    return " ".join(f"{ratio:.2f}" for ratio in ratios)


def against(goal: str, *, met: bool) -> str:
    """Return a goal and whether it is met, for the last column of a table."""
    return f"{goal} {'met' if met else 'MISSED'}"


def median_difference(upper: Sequence[float], lower: Sequence[float]) -> float:
    """Return the median of the differences of neighbours, in the unit of the series."""
    return statistics.median(a - b for a, b in zip(upper, lower, strict=True))
