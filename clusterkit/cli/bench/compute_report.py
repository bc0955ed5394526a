"""What `bench compute` found, as a terminal of 80 columns shows it."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.cli.bench.job import finding_lines
from clusterkit.cli.frame import console
from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.core.text import figure, table, wrapped
from clusterkit.observe.bench.compute import (
    Kind,
    Result,
    Worker,
    correct,
    findings,
    kinds,
    share,
    throttling,
)

_MOST_ROWS = 16
_ALIGN = "<>>>>>>><"


def compute_lines(result: Result) -> Iterator[str]:
    """Yield the lines of an answer."""
    ranks = f"{len(result.workers)} rank" + "s" * (len(result.workers) != 1)
    nodes = {one.node for one in result.workers if one.node}
    yield from wrapped(f"{console.bold(ranks)}: {fold_set(nodes)}; torch {result.torch}")
    for kind in kinds(result):
        yield ""
        yield from _table(kind)
        yield from wrapped(_median(kind), "  ", "  ")
    yield ""
    yield from finding_lines(findings(result), nodes)
    right, end = correct(result), "" if result.complete else ", and the end is missing"
    if right:
        yield console.coloured(f"all products are right{end}", "yellow" if end else "green")
    elif right is None:
        yield console.coloured(f"not all ranks have checked their products{end}", "yellow")


def _median(kind: Kind) -> str:
    text = f"median {figure(kind.median)} TFLOP/s"
    if kind.known is None or kind.of_peak is None:
        return text
    peak, best = figure(kind.known.half_tflops), kind.known.mamf_tflops
    more = f"; the most that was measured elsewhere is {figure(best)}" if best else ""
    return f"{text}, {kind.of_peak:.0%} of the peak of {kind.known.name}, {peak}{more}"


def _table(kind: Kind) -> Iterator[str]:
    """Yield the slowest ranks of a kind, the very slowest at the end."""
    first, read = kind.workers[0], any(one.readings for one in kind.workers)
    yield f"{kind.device}, {first.dtype}, {first.size} x {first.size}"
    rows = [["node", first.slot, "TFLOP/s", "slowest", "of median"]]
    rows[0] += ["clock", "power", "warmest"] if read else []
    by_speed = sorted(kind.workers, key=lambda one: -(one.tflops or 0.0))
    for one in by_speed[-_MOST_ROWS:]:
        speeds = (
            figure(one.tflops or 0.0),
            figure(one.slowest_tflops or 0.0),
            f"{share(kind, one):.0%}",
        )
        rows.append([one.node or "", str(one.gpu), *speeds, *(_vitals(one) if read else ())])
    head, *rest = table(rows, _ALIGN)
    yield console.dim(head)
    yield from rest
    if (hidden := len(by_speed) - _MOST_ROWS) > 0:
        yield f"  and {hidden} that are faster: --json has all"


def _vitals(one: Worker) -> Iterator[str]:
    """Yield clock, power and temperature under load, and what holds the clock down."""
    load = [reading.gpu for reading in one.readings if reading.when == "load"]
    for unit, which, values in (
        ("MHz", min, [gpu.clock_mhz for gpu in load]),
        ("W", max, [gpu.power_w for gpu in load]),
        ("C", max, [gpu.temperature_c for gpu in load]),
    ):
        known = [value for value in values if value is not None]
        yield f"{which(known):.0f} {unit}" if known else "-"
    capped = "power cap" if throttling(one, harmful=False) else ""
    yield "slowed down" if throttling(one) else capped
