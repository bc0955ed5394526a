"""Averages of readings, some of which may be missing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
