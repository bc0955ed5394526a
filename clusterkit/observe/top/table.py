"""A snapshot as lines for people, in the width and height that there is."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from clusterkit.core.findings import Verdict
from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.core.text import cut, table
from clusterkit.observe.top.snapshot import JobNow, NodeNow, NodeWarning, Snapshot, warnings_of
from clusterkit.observe.vitals.host import Process
from clusterkit.observe.vitals.sample import Traffic, slowdowns
from clusterkit.preflight.probes.gpu.vitals import GpuVitals

STYLES = {Verdict.FAIL: "red", Verdict.UNKNOWN: "magenta", Verdict.WARN: "yellow"}
_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 20
_LONGEST_NAME = 24
_GIB = 1 << 30
_THOUSANDS = ("", "k", "M", "G", "T", "P")
_BUSY = 5.0
"""Percent of a CPU, from which on a process that is no rank has a line of its own."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line; `style` is a colour, `bold`, `dim` or nothing."""

    text: str
    style: str = ""


Nodes = Sequence[NodeNow]
"""Those of one row: a node, or many folded into one."""


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    width: int
    cell: Callable[[Nodes], str]
    """Of many nodes, means, unless the heading says otherwise."""
    optional: int = 0
    """Left out where there is no room, the highest first."""


def short(number: float | None) -> str:
    """Return a figure in at most four characters and a letter for its thousands, as `1.2G`."""
    if number is None:
        return "-"
    step = 0
    while number >= 999.5 and step < len(_THOUSANDS) - 1:
        number, step = number / 1000, step + 1
    digits = f"{number:.1f}" if 0 < number < 9.95 and step else f"{number:.0f}"
    return digits + _THOUSANDS[step]


def _percent(number: float | None) -> str:
    return "-" if number is None else f"{number:.0f}%"


def _whole(number: float | None) -> str:
    return "-" if number is None else f"{number:.0f}"


def bars(numbers: tuple[float, ...], width: int) -> str:
    """Return the last of some figures as a row of bars, from 0 to the greatest."""
    shown = numbers[-width:] if width > 0 else ()
    top = max(shown, default=0.0)
    if len(shown) < 2 or top <= 0:
        return ""
    return "".join(_BARS[round((len(_BARS) - 1) * one / top)] for one in shown)


def _gpus(nodes: Nodes) -> list[GpuVitals]:
    return [gpu for node in nodes if node.sample is not None for gpu in node.sample.gpus]


def _busy(nodes: Nodes) -> list[float]:
    return [gpu.busy_percent for gpu in _gpus(nodes) if gpu.busy_percent is not None]


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


def _fullest_gpu(nodes: Nodes) -> float | None:
    shares = (
        100 * gpu.memory_used_mib / gpu.memory_mib
        for gpu in _gpus(nodes)
        if gpu.memory_used_mib is not None and gpu.memory_mib
    )
    return max(shares, default=None)


def _hottest(nodes: Nodes) -> float | None:
    return max((c for gpu in _gpus(nodes) if (c := gpu.temperature_c) is not None), default=None)


def _watts(nodes: Nodes) -> float | None:
    """Return what all GPUs of a node draw."""
    of_nodes = [[w for gpu in _gpus([node]) if (w := gpu.power_w) is not None] for node in nodes]
    return _mean([sum(watts) for watts in of_nodes if watts])


def _fullest(nodes: Nodes) -> float | None:
    hosts = [node.sample.host for node in nodes if node.sample is not None]
    shares = (100 * (1 - host.available_bytes / host.memory_bytes) for host in hosts)
    return max(shares, default=None)


def _rate(name: str) -> Callable[[Nodes], str]:
    return lambda nodes: _percent(_mean([getattr(n.rates, name) for n in nodes if n.rates]))


def _moved(links: str, direction: str) -> Callable[[Nodes], str]:
    """Return a cell of bytes per second through all interfaces, or ports, of a node."""

    def cell(nodes: Nodes) -> str:
        of_nodes = [getattr(node.rates, links) for node in nodes if node.rates is not None]
        return short(
            _mean([sum(getattr(one, direction) for one in found) for found in of_nodes if found])
        )

    return cell


_COLUMNS = (
    _Column("GPU", 4, lambda nodes: _percent(_mean(_busy(nodes)))),
    _Column("MIN", 4, lambda nodes: _percent(min(_busy(nodes), default=None)), 1),
    _Column("VRAM", 4, lambda nodes: _percent(_fullest_gpu(nodes))),
    _Column("C", 3, lambda nodes: _whole(_hottest(nodes))),
    _Column("WATT", 5, lambda nodes: short(_watts(nodes))),
    _Column("CPU", 4, _rate("cpu_percent")),
    _Column("WAIT", 4, _rate("waiting_percent"), 3),
    _Column("MEM", 4, lambda nodes: _percent(_fullest(nodes))),
    _Column("IN/s", 5, _moved("interfaces", "received_bytes_per_s")),
    _Column("OUT/s", 5, _moved("interfaces", "sent_bytes_per_s")),
    _Column("IB IN", 5, _moved("ports", "received_bytes_per_s")),
    _Column("IB OUT", 6, _moved("ports", "sent_bytes_per_s")),
)


def _columns(snapshot: Snapshot) -> tuple[_Column, ...]:
    def processes(nodes: Nodes) -> str:
        known = any(node.sample is not None for node in nodes)
        return str(sum(len(snapshot.processes_of(node)) for node in nodes)) if known else "-"

    return (*_COLUMNS, _Column("PROC", 4, processes, 2))


def lines_of(
    snapshot: Snapshot, *, width: int, height: int | None = None, verbose: bool = False
) -> tuple[Line, ...]:
    """Return what is shown of a snapshot; more nodes than `height` has room for are folded."""
    warnings = warnings_of(snapshot)
    troubled = frozenset(node for one in warnings for node in one.nodes)
    head = tuple(_head(snapshot, width))
    tail = tuple(_tail(snapshot, warnings, width))
    most = None
    if height is not None:
        # At least half of the table, whatever there is to say.
        room = height - len(head) - 1
        tail = tail[-max(room // 2, 1) :] if len(tail) > room // 2 else tail
        most = max(room - len(tail), 1)
    rows = _rows(snapshot, troubled, most=None if verbose else most)
    shown = tuple(_table(snapshot, rows, troubled, width, verbose=verbose))
    if most is not None and len(shown) > most + 1:
        shown = (*shown[:most], Line(f"... {len(shown) - most} lines more", "dim"))
    return (*head, *shown, *tail)


def _rows(snapshot: Snapshot, troubled: frozenset[str], *, most: int | None) -> list[Nodes]:
    """Return a row per node; with more than `most`, those that are well are folded into the first.

    Kept apart are nodes of which something is to be said, then those whose GPUs (or CPUs) do least:
    who waits for whom is seen at the ends.
    """
    nodes = snapshot.nodes
    if most is None or len(nodes) <= max(most, 1):
        return [[node] for node in nodes]
    ranked = sorted(nodes, key=lambda node: (node.name not in troubled, _activity(node)))
    apart = {node.name for node in ranked[: max(most, 1) - 1]}
    alone = [[node] for node in nodes if node.name in apart]
    return [[node for node in nodes if node.name not in apart], *alone]


def _activity(node: NodeNow) -> float:
    idle = node.rates.cpu_percent if node.rates is not None else 0.0
    return min(_busy([node]), default=idle)


def _head(snapshot: Snapshot, width: int) -> Iterator[Line]:
    gpus, count = len(_gpus(snapshot.nodes)), len(snapshot.nodes)
    shown_text = f"{snapshot.cluster}  {count} node{'s' if count != 1 else ''}"
    shown_text += f"  {gpus} GPU{'s' if gpus != 1 else ''}" if gpus else ""
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
    yield Line(f"{shown_text:<{max(width - len(clock), 0)}}{clock}", "bold")
    if snapshot.job is not None:
        yield Line(_job(snapshot.job)[:width])


def _job(job: JobNow) -> str:
    shown_text = f"{job.job_id}  {job.name}  {job.state.value}"
    if job.speed is None:
        return f"{shown_text}  no speed in its log yet"
    speed = job.speed
    each = " per slot" if speed.per_slot else ""
    mean = " on average" if speed.average else ""
    step = f" at step {speed.step}" if speed.step is not None else ""
    shown_text += f"  {speed.rate:.6g} {speed.unit}/s{each}{mean}{step}"
    return f"{shown_text}  {bars(job.history, _MOST_BARS)}".rstrip()


def _table(
    snapshot: Snapshot,
    rows: Sequence[Nodes],
    troubled: frozenset[str],
    width: int,
    *,
    verbose: bool,
) -> Iterator[Line]:
    cells = {
        one: shown
        for one in _columns(snapshot)
        if {*(shown := [one.cell(row) for row in rows])} - {"-", ""}
    }
    names = [_name(row) for row in rows]
    room = min(_LONGEST_NAME, max(map(len, ("NODE", *names))))
    while (over := _width(cells, 1) + room - width) > 0:
        least_needed = max(cells, key=lambda one: one.optional, default=None)
        if least_needed is None or not least_needed.optional:
            room = max(8, room - over)
            break
        del cells[least_needed]
    # Names of machines differ at their ends.
    names = [name if len(name) <= room else "…" + name[1 - room :] for name in names]
    head, *lines = table(
        [("NODE", *(one.heading for one in cells)), *zip(names, *cells.values(), strict=True)],
        "<" + ">" * len(cells),
        gap=2 if room + _width(cells, 2) <= width else 1,
        widths=[room, *(one.width for one in cells)],
    )
    yield Line(head, "bold")
    for row, line in zip(rows, lines, strict=True):
        yield Line(line, "yellow" if any(node.name in troubled for node in row) else "")
        if verbose and len(row) == 1:
            for text in _details(snapshot, row[0]):
                yield Line(cut(f"  {text}", width), "dim")


def _name(nodes: Nodes) -> str:
    if len(nodes) == 1:
        return nodes[0].name
    folded = fold_set(node.name for node in nodes)
    return folded if len(folded) <= _LONGEST_NAME else f"{len(nodes)} other nodes"


def _width(columns: Iterable[_Column], gap: int) -> int:
    return sum(column.width + gap for column in columns)


def _tail(snapshot: Snapshot, warnings: Sequence[NodeWarning], width: int) -> Iterator[Line]:
    for one in warnings:
        text = f"{one.verdict.value:<7}  {one.where}  {one.text}"
        wrapped = textwrap.wrap(text, width, subsequent_indent=" " * 9)
        yield from (Line(line, STYLES[one.verdict]) for line in wrapped)
    if snapshot.unasked:
        text = f"not asked: {fold_set(snapshot.unasked)}: {snapshot.why_unasked}"
        yield from (Line(line, "dim") for line in textwrap.wrap(text, width))


def _details(snapshot: Snapshot, node: NodeNow) -> Iterator[str]:
    """Yield a line for each GPU, each link that carries something, and each process of the job."""
    if node.sample is None:
        return
    limited = {one.index: one.why for one in slowdowns(node.sample.gpus)}
    for gpu in node.sample.gpus:
        yield _gpu(gpu, limited.get(gpu.index, ""))
    host = node.sample.host
    free = host.available_bytes / _GIB
    yield (
        f"host {host.cpus} CPUs, load {host.load:.1f}, "
        f"{free:.1f} of {host.memory_bytes / _GIB:.1f} GiB left"
    )
    if node.rates is not None:
        for link in (*node.rates.interfaces, *node.rates.ports):
            if link.received_bytes_per_s or link.sent_bytes_per_s or link.errors_per_s:
                yield _link(link)
        if node.rates.throttled_percent is not None:
            yield (
                f"cgroup limit of {node.rates.throttled_at_cpus:.3g} CPUs, "
                f"used up in {node.rates.throttled_percent:.0f}% of the scheduler's periods"
            )
    yield from _processes(snapshot, node)


def _processes(snapshot: Snapshot, node: NodeNow) -> Iterator[str]:
    """Yield a line for each rank and for what is busy beside them; the rest together."""
    used = node.rates.process_cpu_percent if node.rates is not None else {}
    found = snapshot.processes_of(node)
    shown = [one for one in found if one.rank is not None or used.get(one.pid, 0.0) >= _BUSY]
    shown.sort(key=lambda one: (one.run, one.rank is None, one.rank or 0, -used.get(one.pid, 0.0)))
    run = ""
    for process in shown:
        if snapshot.job is None and process.run != run:
            run = process.run
            yield f"run {run}"
        yield _process(process, used.get(process.pid))
    rest = len(found) - len(shown)
    if rest:
        whose = "jobs" if snapshot.job is None else "the job"
        yield f"{rest} more process{'es' if rest > 1 else ''} of {whose}, idle"


def _gpu(gpu: GpuVitals, limited: str) -> str:
    used = None if gpu.memory_used_mib is None else gpu.memory_used_mib / 1024
    total = None if gpu.memory_mib is None else gpu.memory_mib / 1024
    memory = "-" if used is None or total is None else f"{used:.1f}/{total:.1f} GiB"
    parts = (
        f"gpu {gpu.index}  {_percent(gpu.busy_percent):>4}",
        f"{memory:>14}",
        f"{_whole(gpu.temperature_c):>3} C",
        f"{_whole(gpu.power_w):>4}/{_whole(gpu.power_limit_w)} W",
        "" if gpu.clock_mhz is None else f"{gpu.clock_mhz:>4.0f} MHz",
        limited,
    )
    return "  ".join(part for part in parts if part)


def _link(link: Traffic) -> str:
    bad = f"  {link.errors_per_s:.0f} packets/s bad" if link.errors_per_s else ""
    received, sent = short(link.received_bytes_per_s), short(link.sent_bytes_per_s)
    return f"link {link.name}  in {received}B/s  out {sent}B/s{bad}"


def _process(process: Process, used: float | None) -> str:
    who = f"rank {process.rank}" if process.rank is not None else "no rank"
    return (
        f"{who:<8}  {process.command}  pid {process.pid}  {process.state}  "
        f"{_percent(used)} CPU  {process.memory_bytes / _GIB:.1f} GiB  {process.threads} threads"
    )
