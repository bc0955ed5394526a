"""Figures in few characters."""

from __future__ import annotations

GIB = 1 << 30
_STEPS = ("", "k", "M", "G", "T", "P")
_BARS = "▁▂▃▄▅▆▇█"


def short(number: float | None) -> str:
    """Return a figure in at most four characters and a letter for its thousands, as `1.2G`."""
    if number is None:
        return "-"
    step = 0
    while number >= 999.5 and step < len(_STEPS) - 1:
        number, step = number / 1000, step + 1
    digits = f"{number:.1f}" if 0 < number < 9.95 and step else f"{number:.0f}"
    return digits + _STEPS[step]


def percent(number: float | None) -> str:
    """Return a percentage, as `97%`."""
    return "-" if number is None else f"{number:.0f}%"


def whole(number: float | None) -> str:
    """Return a figure without its fraction."""
    return "-" if number is None else f"{number:.0f}"


def bars(numbers: tuple[float, ...], width: int) -> str:
    """Return the last of some figures as a row of bars, from 0 to the greatest."""
    shown = numbers[-width:] if width > 0 else ()
    top = max(shown, default=0.0)
    if len(shown) < 2 or top <= 0:
        return ""
    return "".join(_BARS[round((len(_BARS) - 1) * one / top)] for one in shown)
