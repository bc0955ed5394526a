"""Rows as aligned lines."""

from __future__ import annotations

from clusterkit.core.text import table


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("NODE", "GPUS", "STATE"), ("n1", 8, "up"), ("n100", 16, None)]

    assert table(rows, "<>") == ["NODE  GPUS  STATE", "n1       8  up", "n100    16"]


def test_colours_take_no_room() -> None:
    lines = table([("\x1b[31mn1\x1b[0m", "a"), ("n2", "b")], widths=(4,), gap=1)

    assert lines == ["\x1b[31mn1\x1b[0m   a", "n2   b"]
