"""What the functions have in common: warnings, and results as a notebook shows them."""

from __future__ import annotations

import html
import inspect
import warnings
from collections.abc import Iterable


class ClusterkitWarning(UserWarning):
    """What the command line would print on stderr, beside the answer."""


def warn(text: str) -> None:
    """Warn whoever called into clusterkit."""
    warnings.warn(text, ClusterkitWarning, stacklevel=_outside())


def html_table(rows: Iterable[tuple[str, object]]) -> str:
    """Return two columns, the first one bold."""
    style = "style='text-align:left'"
    cells = (
        f"<tr><th {style}>{html.escape(name)}</th><td {style}>{html.escape(str(text))}</td></tr>"
        for name, text in rows
    )
    return f"<table>{''.join(cells)}</table>"


def _outside() -> int:
    """Return the level of the caller's first frame that is none of ours, as `warnings` counts."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith("clusterkit."):
        frame, level = frame.f_back, level + 1
    return max(level, 1)
