"""Lists and texts in lines, which have no room for all there is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from clusterkit.core.text.escapes import ESCAPES


def some_of(names: Sequence[str], most: int, *, rest: str = "more") -> str:
    """Return the first `most` names with commas, and how many are left: `a, b and 3 more`."""
    left = len(names) - most
    shown = ", ".join(names[:most])
    return f"{shown} and {left} {rest}" if left > 0 else shown


def cut(text: str, width: int) -> str:
    """Return at most `width` characters of a text, the last an ellipsis where there are more."""
    return text if len(text) <= width else text[: width - 1] + "…"


def table(
    rows: Sequence[Sequence[object]],
    align: str = "",
    *,
    gap: int = 2,
    widths: Sequence[int] = (),
) -> list[str]:
    """Return rows as lines in which each column is as wide as its widest cell.

    Colours take no room. A row may be shorter than others; nothing stands at the end of a line.
    By rich, this would cost each verb that has a table 40 ms of start.

    Args:
        rows: Cells; None is an empty one.
        align: A letter a column, `<` or `>`; `<` for those that are left.
        gap: Spaces between columns.
        widths: What the first columns have at least.

    >>> table([("NODE", "GPUS"), ("n1", 8)], "<>")
    ['NODE  GPUS', 'n1       8']
    """
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    lengths = [[len(ESCAPES.sub("", cell)) for cell in row] for row in cells]
    wide = [max(column) for column in zip_longest(widths, *lengths, fillvalue=0)]
    lines = []
    for row, taken in zip(cells, lengths, strict=True):
        padded = [
            " " * (wide[i] - taken[i]) + cell
            if align[i : i + 1] == ">"
            else cell + " " * (wide[i] - taken[i])
            for i, cell in enumerate(row)
        ]
        lines.append((" " * gap).join(padded).rstrip())
    return lines
