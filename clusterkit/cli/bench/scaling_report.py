"""How well a script scales, as a terminal of 80 columns shows it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from clusterkit.cli.frame import console
from clusterkit.core.text.listing import table
from clusterkit.observe.bench.scaling.result import (
    FAIR,
    Cause,
    Row,
    Scaling,
    figure,
    in_percent,
    step_time,
)
from clusterkit.observe.bench.scaling.sizes import By, in_words

_WIDTH = 79
_WIDTHS = (7, 7, 14, 11, 11, 11, 13)
_LABEL = 15


def lines_of(found: Scaling, causes: Mapping[int, tuple[Cause, ...]]) -> Iterator[str]:
    """Yield the lines of the answer."""
    yield f"{console.bold(found.script)}  {found.framework}, cluster {found.cluster}"
    yield from _table(found)
    for row in found.rows:
        said = causes.get(row.size.count, ())
        if row.problem or said:
            yield ""
            yield from _remarks(found, row, said)
    yield from _footnotes(found)


def _table(found: Scaling) -> Iterator[str]:
    unit = f"{found.unit}/s" if found.unit else "throughput"
    slots = found.by is By.NODES
    rows = [[found.by.value, "slots", unit, "from", "to", "a step", "efficiency"]]
    rows += [[str(row.size.count), str(row.slots), *_cells(found, row)] for row in found.rows]
    if not slots:
        rows = [[row[0], *row[2:]] for row in rows]
    head, *lines = table(rows, ">" * 7, gap=0, widths=_WIDTHS if slots else _WIDTHS[1:])
    yield console.dim(head)
    yield from lines


def _cells(found: Scaling, row: Row) -> tuple[str, ...]:
    rate, efficiency = found.rate(row), found.efficiency(row)
    if rate is None or efficiency is None:
        return (row.state if row.problem else "-",)
    took = step_time(row.step_s) if row.step_s is not None else "-"
    return (*map(figure, (rate.per_s, rate.low, rate.high)), took, in_percent(efficiency))


def _remarks(found: Scaling, row: Row, causes: tuple[Cause, ...]) -> Iterator[str]:
    efficiency = found.efficiency(row)
    share = "" if efficiency is None else f", {in_percent(efficiency)}"
    yield console.bold(f"{in_words(found.by, row.size.count)}{share}")
    if row.problem:
        colour = console.coloured(f"{row.state or 'not measured':<{_LABEL - 3}} ", "red")
        first, *rest = row.problem.splitlines()
        yield from _block(colour, first)
        for line in (*rest, *row.hint.splitlines()):
            yield from _indented(line)
    for cause in causes:
        label = console.coloured(f"{cause.kind:<{_LABEL - 3}} ", "yellow")
        yield from _block(label, cause.summary)
        for line in cause.evidence:
            yield from _indented(line)
        if cause.hint:
            yield from _indented(f"hint: {cause.hint}")


def _block(label: str, text: str) -> Iterator[str]:
    first, *rest = textwrap.wrap(text, _WIDTH - _LABEL) or [""]
    yield f"  {label}{first}"
    for line in rest:
        yield " " * _LABEL + line


def _indented(text: str) -> Iterator[str]:
    # A path is to be copied as one piece, and so never broken.
    for line in textwrap.wrap(
        text, _WIDTH - _LABEL - 2, break_long_words=False, break_on_hyphens=False
    ):
        yield " " * (_LABEL + 2) + line


def _footnotes(found: Scaling) -> Iterator[str]:
    base = found.base
    if base is None:
        return
    notes = []
    if base.size.count != 1:
        notes.append(f"efficiency is told against {in_words(found.by, base.size.count)}")
    if found.unit == "steps":
        notes.append(
            "the script tells steps alone: its steps are counted once for each slot, as each has "
            "a batch of its own (--global-batch where it has not)"
        )
    rates = [rate for row in found.rows if (rate := found.rate(row))]
    if any(rate.average for rate in rates):
        notes.append("the script tells averages since its start, slow first steps among them")
    if any(rate.lines == 1 and not rate.average for rate in rates):
        notes.append("a rate of one line is a guess: more --steps, or lines more often")
    odd = any(found.short(row) or found.beyond(row) for row in found.rows)
    if not odd and len(rates) > 1:
        notes.append(f"no size falls short of {in_percent(FAIR)}")
    if notes:
        yield ""
    for note in notes:
        yield from textwrap.wrap(note, _WIDTH)
