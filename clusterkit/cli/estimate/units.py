"""Figures and paragraphs as `clusterkit estimate` shows them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterkit.estimate.results import Interval

WIDTH = 80


def paragraph(text: str, *, first: str | None = None, indent: int = 0) -> Sequence[str]:
    """Return lines of `text`; the first begins with `first`, if given, the others with blanks."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent if first is None else first,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def gb(amount: float) -> str:
    """Return bytes in GB, which are 10^9 of them."""
    return f"{amount / 1e9:,.1f}"


def gb_range(interval: Interval) -> str:
    """Return what is likely, and both ends."""
    return f"{gb(interval.likely)} ({gb(interval.low)} to {gb(interval.high)})"


def count(number: float) -> str:
    """Return a large number with a letter: 8.03 B."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= scale:
            return f"{number / scale:.3g} {letter}"
    return f"{number:,.0f}"


def span(interval: Interval) -> str:
    """Return both ends of an interval, to the two or three figures that are known."""
    low, high = rounded(interval.low), rounded(interval.high)
    return low if low == high else f"{low}-{high}"


def rounded(number: float) -> str:
    """Return a number to the two or three figures that are known."""
    figures = 3 if number >= 10_000 or 100 <= number < 1000 else 2
    shown = float(f"{number:.{figures}g}")
    return f"{shown:,.0f}" if shown >= 10 else f"{shown:g}"
