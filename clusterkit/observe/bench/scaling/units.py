"""Figures of a measurement as a person reads them."""

from __future__ import annotations


def in_percent(share: float) -> str:
    """Return a fraction, such as `47 %`."""
    return f"{100 * share:.0f} %"


def figure(rate: float) -> str:
    """Return a rate with as many digits as mean something."""
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"


def step_time(seconds: float) -> str:
    """Return how long a step takes, such as `63.7 ms`."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
