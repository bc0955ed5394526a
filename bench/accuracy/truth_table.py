"""Published figures with their configuration: the table that estimates are scored against.

A tab-separated file, one figure a row, with a header that names the columns of `Row`; further
columns are left alone. A row says what was trained, where and how, in the words of its source.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from clusterkit.core.errors import Position, Problem, UserError
from clusterkit.core.files import explained

_WHOLE = ("n_gpus", "seq", "micro_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published figure; texts as they stand in the file, None where a number is left out."""

    id: str
    model: str
    params: float | None
    config: str
    gpu: str
    n_gpus: int | None
    strategy: str
    layout: str
    precision: str
    seq: int | None
    micro_batch: int | None
    act_ckpt: str
    quantity: str
    value: float
    unit: str
    basis: str
    kind: str
    """`measured`, or `analytic` where a formula gave it."""
    source: str
    note: str
    flaw: str = ""
    """Why it cannot be read, with the number of its line; empty where it can."""

    @property
    def family(self) -> str:
        """The set of figures it belongs to: its id without the number at the end."""
        head, _, tail = self.id.rpartition("-")
        return head if head and tail.isdigit() else self.id

    @property
    def measured(self) -> bool:
        """Whether somebody ran it, rather than worked it out."""
        return self.kind.strip().lower() == "measured"


COLUMNS = tuple(field.name for field in fields(Row) if field.name != "flaw")
"""The columns that a table must have, in the order that they are usually in."""


def read_rows(path: Path) -> tuple[Row, ...]:
    """Read a table of published figures.

    Raises:
        UserError: the file cannot be read, lacks a column, or holds no row that can be read; all
            such lines at once. One of several lines that cannot be read is a row with a `flaw`.
    """
    with explained(path, "read"):
        text = path.read_text(encoding="utf-8", errors="replace")
    return parse_rows(text, source=str(path))


def parse_rows(text: str, *, source: str) -> tuple[Row, ...]:
    """Parse the text of such a table; `source` names it in errors."""
    lines = text.split("\n")
    header = lines[0].rstrip("\r").lstrip("\ufeff").split("\t")
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        empty = not text.strip()
        raise UserError(
            "the table is empty" if empty else f"the table lacks columns: {', '.join(missing)}",
            hint=f"tab-separated, with this header: {' '.join(COLUMNS)}",
            position=Position(source=source, line=1),
        )
    rows: list[Row] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines[1:], start=2):
        cells = line.rstrip("\r").split("\t")
        if not line.strip() or line.startswith("#"):
            continue
        found = tuple(_problems(header, cells))
        if found:
            where = Position(source=source, line=number)
            problems += [Problem(message=message, position=where) for message in found]
        torn = len(cells) != len(header)
        texts = {"id": cells[0]} if torn else dict(zip(header, cells, strict=True))
        flaw = f"line {number}: {'; '.join(found)}" if found else ""
        rows.append(_row(texts, line=number, flaw=flaw))
    if problems and all(row.flaw for row in rows):
        raise UserError(problems=problems)
    if not rows:
        raise UserError("the table holds no figures", position=Position(source=source, line=1))
    return tuple(rows)


def _problems(header: Sequence[str], cells: Sequence[str]) -> Iterator[str]:
    if len(cells) != len(header):
        yield f"{len(cells)} cells where the header has {len(header)}"
        return
    row = dict(zip(header, cells, strict=True))
    if not row["id"].strip():
        yield "no id"
    for column in ("params", *_WHOLE, "value"):
        text = row[column].strip()
        if not text and column != "value":
            continue
        number = _number(text)
        if number is None:
            yield f"{column} is not a number: {text!r}"
        elif number < 0 or (column in _WHOLE and number != int(number)):
            yield f"{column} cannot be {text}"


def _row(cells: Mapping[str, str], *, line: int, flaw: str) -> Row:
    words = {column: cells.get(column, "").strip() for column in COLUMNS}
    value = _number(words["value"])
    return Row(
        id=words["id"] or f"line {line}",
        model=words["model"],
        params=_number(words["params"]),
        config=words["config"],
        gpu=words["gpu"],
        n_gpus=_whole(words["n_gpus"]),
        strategy=words["strategy"],
        layout=words["layout"],
        precision=words["precision"],
        seq=_whole(words["seq"]),
        micro_batch=_whole(words["micro_batch"]),
        act_ckpt=words["act_ckpt"],
        quantity=words["quantity"],
        value=math.nan if value is None else value,
        unit=words["unit"],
        basis=words["basis"],
        kind=words["kind"],
        source=words["source"],
        note=words["note"],
        flaw=flaw,
    )


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _whole(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number)
