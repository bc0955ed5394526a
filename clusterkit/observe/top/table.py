"""A snapshot as lines for people, in the width and height that there is."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from clusterkit.core.findings import Verdict
from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.core.text.listing import cut
from clusterkit.observe.top.details import details_of
from clusterkit.observe.top.rows import LONGEST_NAME, Row, rows_of
from clusterkit.observe.top.snapshot import JobNow, Snapshot
from clusterkit.observe.top.units import bars, percent, short, whole
from clusterkit.observe.top.warnings import Remark, remarks_on

STYLES = {Verdict.FAIL: "red", Verdict.UNKNOWN: "magenta", Verdict.WARN: "yellow"}
_BARS = 20


@dataclass(frozen=True, slots=True)
class Line:
    """A line; `style` is a colour, `bold`, `dim` or nothing."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    width: int
    cell: Callable[[Row], str]
    optional: int = 0
    """Left out where there is no room, the highest first."""


_COLUMNS = (
    _Column("GPU", 4, lambda row: percent(row.gpu_percent)),
    _Column("MIN", 4, lambda row: percent(row.least_gpu_percent), 1),
    _Column("VRAM", 4, lambda row: percent(row.gpu_memory_percent)),
    _Column("C", 3, lambda row: whole(row.hottest_c)),
    _Column("WATT", 5, lambda row: short(row.watts)),
    _Column("CPU", 4, lambda row: percent(row.cpu_percent)),
    _Column("WAIT", 4, lambda row: percent(row.waiting_percent), 3),
    _Column("MEM", 4, lambda row: percent(row.memory_percent)),
    _Column("IN/s", 5, lambda row: short(row.received)),
    _Column("OUT/s", 5, lambda row: short(row.sent)),
    _Column("IB IN", 5, lambda row: short(row.ib_received)),
    _Column("IB OUT", 6, lambda row: short(row.ib_sent)),
    _Column("PROC", 4, lambda row: whole(row.processes), 2),
)


def lines_of(
    snapshot: Snapshot, *, width: int, height: int | None = None, verbose: bool = False
) -> tuple[Line, ...]:
    """Return what is shown of a snapshot; more nodes than `height` has room for are folded."""
    remarks = remarks_on(snapshot)
    troubled = frozenset(node for remark in remarks for node in remark.nodes)
    head = tuple(_head(snapshot, width))
    tail = tuple(_tail(snapshot, remarks, width))
    most = None
    if height is not None:
        # At least half of the table, whatever there is to say.
        room = height - len(head) - 1
        tail = tail[-max(room // 2, 1) :] if len(tail) > room // 2 else tail
        most = max(room - len(tail), 1)
    rows = rows_of(snapshot, troubled, most=None if verbose else most)
    table = tuple(_table(snapshot, rows, width, verbose=verbose))
    if most is not None and len(table) > most + 1:
        table = (*table[:most], Line(f"... {len(table) - most} lines more", "dim"))
    return (*head, *table, *tail)


def _head(snapshot: Snapshot, width: int) -> Iterator[Line]:
    gpus = sum(len(node.sample.gpus) for node in snapshot.nodes if node.sample is not None)
    count = len(snapshot.nodes)
    said = f"{snapshot.cluster}  {count} node{'s' if count != 1 else ''}"
    said += f"  {gpus} GPU{'s' if gpus != 1 else ''}" if gpus else ""
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
    yield Line(f"{said:<{max(width - len(clock), 0)}}{clock}", "bold")
    if snapshot.job is not None:
        yield Line(_job(snapshot.job)[:width])


def _job(job: JobNow) -> str:
    said = f"{job.job_id}  {job.name}  {job.state.value}"
    if job.speed is None:
        return f"{said}  no speed in its log yet"
    speed = job.speed
    each = " a slot" if speed.per_slot else ""
    mean = " on average" if speed.average else ""
    step = f" at step {speed.step}" if speed.step is not None else ""
    said += f"  {speed.rate:.6g} {speed.unit}/s{each}{mean}{step}"
    return f"{said}  {bars(job.history, _BARS)}".rstrip()


def _table(snapshot: Snapshot, rows: Sequence[Row], width: int, *, verbose: bool) -> Iterator[Line]:
    columns = [one for one in _COLUMNS if any(one.cell(row) not in {"-", ""} for row in rows)]
    names = min(LONGEST_NAME, max([len("NODE"), *(len(row.name) for row in rows)]))
    while (over := _width(columns, 1) + names - width) > 0:
        least = max(columns, key=lambda one: one.optional, default=None)
        if least is None or not least.optional:
            names = max(8, names - over)
            break
        columns.remove(least)
    gap = 2 if names + _width(columns, 2) <= width else 1
    space = " " * gap
    head = space.join([f"{'NODE':<{names}}", *(f"{c.heading:>{c.width}}" for c in columns)])
    yield Line(head.rstrip(), "bold")
    by_name = {node.name: node for node in snapshot.nodes}
    for row in rows:
        # Names of machines differ at their ends.
        name = row.name if len(row.name) <= names else "…" + row.name[1 - names :]
        cells = [f"{name:<{names}}", *(f"{one.cell(row):>{one.width}}" for one in columns)]
        yield Line(space.join(cells).rstrip(), "yellow" if row.trouble else "")
        if verbose and len(row.nodes) == 1:
            for text in details_of(snapshot, by_name[row.nodes[0]]):
                yield Line(cut(f"  {text}", width), "dim")


def _width(columns: Sequence[_Column], gap: int) -> int:
    return sum(column.width + gap for column in columns)


def _tail(snapshot: Snapshot, remarks: Sequence[Remark], width: int) -> Iterator[Line]:
    for remark in remarks:
        word = remark.verdict.value
        yield from (
            Line(text, STYLES[remark.verdict])
            for text in textwrap.wrap(
                f"{word:<7}  {remark.where}  {remark.text}", width, subsequent_indent=" " * 9
            )
        )
    if snapshot.unasked:
        text = f"not asked: {fold_set(snapshot.unasked)}: {snapshot.why_unasked}"
        yield from (Line(line, "dim") for line in textwrap.wrap(text, width))
