"""Measured collectives and scaling as a terminal of 80 columns shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterkit.cli.frame import console
from clusterkit.core.hosts import hostlist
from clusterkit.core.text import figure, table, wrapped
from clusterkit.observe.bench.allreduce.answer import Answer
from clusterkit.observe.bench.allreduce.result import (
    LeftOut,
    Operation,
    Result,
    size_in_words,
)
from clusterkit.observe.bench.scaling.result import (
    FAIR,
    By,
    Cause,
    Row,
    Scaling,
    in_percent,
    in_words,
    step_time,
)
from clusterkit.observe.bench.scaling.result import (
    figure as rate_figure,
)

_LABEL = "  {:<11} "
_INDENT = 14
_SLOW = 0.85
"""Below this share of what was expected, where to look is said."""
_FALLS = 0.8
_UNSTEADY = 1.5
_MOST_WRONG = 8
_UNSEEN = "nobody has looked at the results"
_NO_TRAFFIC = "none: one rank has nobody to exchange anything with"
_TOO_SMALL = (
    "unknown: nccl-tests prints two decimals of GB/s; with --nodes and --gpus-per-node it is "
    "computed from the time"
)


def allreduce_lines(found: Answer) -> Iterator[str]:
    """Yield the lines of an answer."""
    result = found.result
    yield from _headline(result)
    best = max((one.busbw or one.algbw for one in result.measured), default=0.0)
    unit, scale = ("GB/s", 1e9) if best >= 1e9 else ("MB/s", 1e6)
    for op in result.operations:
        yield ""
        yield from _table(result, op, unit, scale)
        yield from _summary(found, op)
    if result.perhaps:
        others = " or ".join(op.words for op in result.perhaps)
        yield from wrapped(f"the table fits {others} as well: it does not say which of them ran")
    if result.left_out:
        yield ""
        yield from _left_out(result.left_out)
    yield ""
    yield from _verdict(result)


def _headline(result: Result) -> Iterator[str]:
    many = "s" * (result.ranks != 1)
    ranks = f"{result.ranks} rank{many}" if result.ranks else "ranks unknown"
    if result.node_count:
        ranks += f" on {result.node_count} node" + "s" * (result.node_count > 1)
    names = f": {hostlist.fold_set(result.nodes)}" if result.nodes else ""
    yield from wrapped(console.bold(ranks) + names)
    if (groups := result.groups) is not None and result.ranks is not None:
        many = f"{result.ranks // groups.ranks} {groups.over} groups of {groups.ranks} ranks"
        yield f"{many}, all at the same time"
    what = ", ".join(filter(None, (result.backend, result.device, *result.versions)))
    yield from wrapped(f"{what}; measured by {result.source}")


def _table(result: Result, op: Operation, unit: str, scale: float) -> Iterator[str]:
    spread = ("slowest", "fastest") if any(one.fastest for one in result.of(op)) else ()
    rows: list[tuple[str, ...]] = [(op.words, "time", "algbw", "busbw", *spread, f"  {unit}")]
    for one in result.of(op):
        rates = [one.algbw, one.busbw]
        if one.slowest is not None and one.fastest is not None:
            rates += [one.slowest, one.fastest]
        figures = (figure(rate / scale) for rate in rates)
        rows.append((f"{size_in_words(one.bytes):>14}", _time(one.seconds), *figures))
    align = "<>>>" + ">" * len(spread)
    head, *lines = table(rows, align, gap=0, widths=(16, 12, 10, 10, 12, 10))
    yield console.dim(head)
    yield from lines


def _summary(found: Answer, op: Operation) -> Iterator[str]:
    result = found.result
    best, large = result.best(op), result.large(op)
    if not best.busbw:
        yield from _labelled("best", _NO_TRAFFIC if result.ranks == 1 else _TOO_SMALL)
        return
    yield _LABEL.format("best") + f"{_rate(best.busbw)} at {size_in_words(best.bytes)}"
    if large.bytes != best.bytes:
        fall = large.busbw / best.busbw
        note = f", {fall:.0%} of the best" if fall < _FALLS else ""
        yield (
            _LABEL.format("largest") + f"{_rate(large.busbw)} at {size_in_words(large.bytes)}{note}"
        )
    assumption = found.assumptions.get(op)
    if assumption is not None:
        yield from _labelled(
            "estimate",
            f"{assumption.share:.0%} of the {_rate(assumption.busbw)} that it assumes for "
            f"{size_in_words(assumption.bytes)} over {assumption.over}",
        )
        if assumption.share < _SLOW:
            yield from _labelled("", _advice(result))
    known, share = found.published, found.published_share
    if op is Operation.ALL_REDUCE and known is not None and share is not None:
        yield from _labelled(
            "published",
            f"{share:.0%} of {known.gbs:g} GB/s, {known.system} ({known.source}), 1 GiB and more",
        )
        reached = share * known.gbs
        if known.warn is not None and known.replace is not None and reached < known.warn:
            level = "replace" if reached < known.replace else "warn"
            limits = f"below {known.warn:g} GB/s warn, below {known.replace:g} replace a node"
            yield from _labelled(level, f"{limits} ({known.limits_of})")
        if share < _SLOW <= (assumption.share if assumption is not None else 1.0):
            yield from _labelled("", _advice(result))
    if large.fastest and large.slowest and large.fastest > _UNSTEADY * large.slowest:
        yield from _labelled(
            "unsteady", "repeats of the largest message differ: others use the nodes or the network"
        )


def _advice(result: Result) -> str:
    if result.backend == "gloo":
        return (
            "gloo goes through the processor: look at its load, and at GLOO_SOCKET_IFNAME; "
            "clusterkit preflight --network measures each link"
        )
    return (
        "NCCL_DEBUG=INFO shows the adapters and the path it takes; "
        "clusterkit preflight --network compares each two nodes"
    )


def _left_out(left_out: tuple[LeftOut, ...]) -> Iterator[str]:
    for op, why in dict.fromkeys((one.op, one.why) for one in left_out):
        sizes = [one.bytes for one in left_out if (one.op, one.why) == (op, why)]
        first, last = size_in_words(min(sizes)), size_in_words(max(sizes))
        what = first if first == last else f"{first} to {last}"
        yield from wrapped(f"not measured: {op.words} of {what}: {why}", "  ", "  ")


def _verdict(result: Result) -> Iterator[str]:
    if result.correct:
        yield console.coloured("the results are right on all ranks", "green")
        return
    if result.error is not None and result.correct is None:
        yield console.coloured("the run failed", "red")
        yield from wrapped(result.error, "  ", "  ")
        return
    if result.correct is None:
        what = "the results were right so far" if result.checked else _UNSEEN
        end = "" if result.complete else ", and the end is missing"
        yield console.coloured(what + end, "yellow")
        return
    yield console.coloured("WRONG RESULTS: data was corrupted on its way", "red")
    for one in result.wrong[:_MOST_WRONG]:
        where = f"rank {one.rank} on {one.node}: " if one.rank is not None else ""
        detail = f", the first: {one.detail}" if one.detail else ""
        yield from wrapped(
            f"{where}{one.op.words} of {size_in_words(one.bytes)}, {one.elements} elements{detail}",
            "  ",
            "  ",
        )
    if len(result.wrong) > _MOST_WRONG:
        yield f"  and {len(result.wrong) - _MOST_WRONG} more: --json has all"
    suspects = hostlist.fold_set(result.suspects)
    yield from wrapped(
        f"do not train on {suspects or 'these nodes'}; clusterkit preflight --network finds the "
        "node that gives wrong sums with every other",
        "  ",
        "  ",
    )


def _labelled(label: str, text: str) -> Iterator[str]:
    yield from wrapped(text, _LABEL.format(label), " " * _INDENT)


def _rate(bytes_per_s: float) -> str:
    """Return a rate as memory and as networks are sold."""
    bits = bytes_per_s * 8
    if bytes_per_s >= 1e9:
        return f"{figure(bytes_per_s / 1e9)} GB/s"
    in_bits = f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"
    return f"{figure(bytes_per_s / 1e6)} MB/s ({in_bits})"


def _time(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{figure(seconds / unit)} {name}"
    return f"{figure(seconds * 1e6)} us"


_WIDTH = 79
_WIDTHS = (7, 7, 14, 11, 11, 11, 13)
_KIND_WIDTH = 15


def scaling_lines(found: Scaling, causes: Mapping[int, tuple[Cause, ...]]) -> Iterator[str]:
    """Yield the lines of the answer."""
    yield f"{console.bold(found.script)}  {found.framework}, cluster {found.cluster}"
    yield from _scaling_table(found)
    for row in found.rows:
        found_causes = causes.get(row.size.count, ())
        if row.problem or found_causes:
            yield ""
            yield from _warnings(found, row, found_causes)
    yield from _footnotes(found)


def _scaling_table(found: Scaling) -> Iterator[str]:
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
    return (*map(rate_figure, (rate.per_s, rate.low, rate.high)), took, in_percent(efficiency))


def _warnings(found: Scaling, row: Row, causes: tuple[Cause, ...]) -> Iterator[str]:
    efficiency = found.efficiency(row)
    share = "" if efficiency is None else f", {in_percent(efficiency)}"
    yield console.bold(f"{in_words(found.by, row.size.count)}{share}")
    if row.problem:
        colour = console.coloured(f"{row.state or 'not measured':<{_KIND_WIDTH - 3}} ", "red")
        first, *rest = row.problem.splitlines()
        yield from _block(colour, first, *rest, *row.hint.splitlines())
    for cause in causes:
        label = console.coloured(f"{cause.kind:<{_KIND_WIDTH - 3}} ", "yellow")
        hint = (f"hint: {cause.hint}",) if cause.hint else ()
        yield from _block(label, cause.summary, *cause.evidence, *hint)


def _block(label: str, text: str, *below: str) -> Iterator[str]:
    """Yield a text behind its label, and indented what belongs to it."""
    first, *rest = wrapped(text, width=_WIDTH - _KIND_WIDTH) or [""]
    yield f"  {label}{first}"
    yield from (" " * _KIND_WIDTH + line for line in rest)
    indent = " " * (_KIND_WIDTH + 2)
    for line in below:
        yield from wrapped(line, indent, indent, width=_WIDTH)


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
        yield from wrapped(note, width=_WIDTH)
