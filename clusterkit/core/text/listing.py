"""Lists and texts in lines, which have no room for all there is."""

from __future__ import annotations

from collections.abc import Sequence


def some_of(names: Sequence[str], most: int, *, rest: str = "more") -> str:
    """Return the first `most` names with commas, and how many are left: `a, b and 3 more`."""
    left = len(names) - most
    shown = ", ".join(names[:most])
    return f"{shown} and {left} {rest}" if left > 0 else shown


def cut(text: str, width: int) -> str:
    """Return at most `width` characters of a text, the last an ellipsis where there are more."""
    return text if len(text) <= width else text[: width - 1] + "…"
