"""What `clusterkit estimate` prints for people: at most 80 columns, readable without colour."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from clusterkit.cli.frame import console
from clusterkit.core.text import WIDTH, wrapped
from clusterkit.core.text import table as columns
from clusterkit.estimate.advice.changes import (
    largest_micro_batch,
    lowering_settings,
    smallest_change,
    smallest_of,
)
from clusterkit.estimate.advice.recommend import adapters_that_fit, warnings_for
from clusterkit.estimate.machines.instances import break_even
from clusterkit.estimate.results import Kind
from clusterkit.estimate.setup import Offload
from clusterkit.estimate.speed.step_time import bill_of
from clusterkit.launch.frameworks.base import preset_text

if TYPE_CHECKING:
    from clusterkit.estimate.advice.recommend import Answer, Candidate
    from clusterkit.estimate.query.answer import Rented
    from clusterkit.estimate.query.mixed import Mixed
    from clusterkit.estimate.query.smallest import Smallest
    from clusterkit.estimate.request import Request
    from clusterkit.estimate.results import Interval, Memory, Speed

_BAR = 30
_ZERO = ("zero1", "zero2")


def headline(request: Request) -> Sequence[str]:
    """Return what is estimated, in two lines."""
    nodes = -(-request.gpus // request.gpus_per_node)
    where = f" in {nodes} nodes" if nodes > 1 else ""
    tokens = request.global_batch * request.seq
    batch = "1 sequence" if request.global_batch == 1 else f"{request.global_batch:,} sequences"
    title = f"{_sizes(request)}, on {request.gpus:,} x {request.gpu.name}{where}"
    return (
        *(console.bold(line) for line in wrapped(title, "", "  ")),
        f"{batch} of {request.seq:,} tokens per step ({tokens:,} tokens)",
    )


def _sizes(request: Request) -> str:
    model = request.model
    sizes = f"{model.name}: {count(model.params)} parameters"
    if model.experts:
        sizes += f", {count(model.active_params)} of them for each token"
    return sizes


def table(answer: Answer) -> Sequence[str]:
    """Return a line for each strategy: what it needs; how fast it is, or its largest tensor."""
    rows, hidden = answer.shown, len(answer.candidates) - len(answer.shown)
    width = max(len("strategy"), *(len(row.name) for row in rows)) + 2
    lines = [f"        {'strategy':<{width}}GB per GPU  {'tokens/s per GPU':>16}   MFU"]
    for row in rows:
        mark, verdict = ">" if row is answer.chosen else " ", "fits" if row.fits else "no"
        start = f"{mark} {verdict:<6}{row.name:<{width}}{gb(row.memory.device.likely):>10}  "
        if row.fits:
            rest = f"{span(row.speed.tokens_per_s_per_gpu):>16}  {row.speed.mfu.likely:>4.0%}"
        else:
            rest = f"largest: {_largest(row.memory)}"
            if len(start + rest) > WIDTH:
                rest = rest.removeprefix("largest: ")
        colour = "green" if row.fits else "red"
        lines.append((start + rest).replace(verdict, console.coloured(verdict, colour), 1))
    lines.append(f"        {'limit':<{width}}{gb(rows[0].memory.limit):>10}")
    if hidden:
        lines.append(f"        and {hidden} that offload, slower: --offload cpu or nvme")
    return [*lines, *_why_alike(rows)]


def _why_alike(rows: Sequence[Candidate]) -> Sequence[str]:
    """Return why ZeRO-2, which divides gradients as well, needs what ZeRO-1 does, where so."""
    found = {row.name: row.memory for row in rows if row.name in _ZERO}
    peaks = {memory.peak.name for memory in found.values()}
    sizes = {gb(memory.device.likely) for memory in found.values()}
    kept = any(memory.peak.bytes_of(Kind.GRADIENTS) for memory in found.values())
    if len(found) < len(_ZERO) or len(peaks) > 1 or len(sizes) > 1 or kept:
        return ()
    text = "zero1 and zero2 need the same here: zero2 divides the gradients as well, but the peak"
    return ("", *wrapped(f"{text} ({peaks.pop()}) comes before gradients are kept."))


def _largest(memory: Memory) -> str:
    """Return what does not fit: the largest tensor of the peak, or else what the node takes."""
    if memory.lacks_ram:
        return f"RAM of a node, {gb(memory.host_bytes)}"
    return f"{memory.binding.name.partition(' (')[0]}, {gb(memory.binding.bytes)}"


def advice(answer: Answer) -> Sequence[str]:
    """Return the recommendation with its reason, and what it means in numbers."""
    chosen = answer.chosen
    if chosen is None:
        return wrapped(f"{answer.why}.")
    setup, memory = chosen.setup, chosen.memory
    parts = f"micro batch {setup.micro_batch}"
    if setup.accumulation > 1:
        parts += f" x accumulation {setup.accumulation}"
    if setup.dp > 1:
        parts += f" x {setup.dp} data-parallel ranks"
    details = [f"{parts} = global batch {setup.global_batch}"]
    details.append(f"{span(chosen.speed.step_s)} s per step")
    if memory.host_bytes:
        details.append(f"{gb(memory.host_bytes)} GB of each node's RAM")
    if memory.nvme_bytes:
        details.append(f"{gb(memory.nvme_bytes)} GB on each node's disks")
    again = " (--checkpointing full)" if chosen.name.endswith("+ac") else ""
    lines = [*wrapped(f"Take {chosen.name}{again}: {answer.why}.")]
    lines += wrapped(", ".join(details), "  ", "  ")
    micro = largest_micro_batch(setup, answer.request.fits)
    if micro > setup.micro_batch:
        lines += wrapped(f"there is room for --micro-batch {micro}", "  ", "  ")
    if chosen.name in (*_ZERO, "zero3"):
        preset = json.loads(preset_text("deepspeed", chosen.name))["train_micro_batch_size_per_gpu"]
        if preset != setup.micro_batch:
            text = f"--ds-preset {chosen.name} has micro batch {preset}; the configuration that"
            lines += wrapped(f"{text} --launch writes has {setup.micro_batch}", "  ", "  ")
    return lines


def changes(answer: Answer) -> Sequence[str]:
    """Return what would make the others fit; those with the same answer share a line."""
    rows = answer.shown
    changed: dict[str, list[str]] = {}
    for one in rows:
        if not one.fits:
            changed.setdefault(_change(one, answer.request), []).append(one.name)
    if not changed:
        return ()
    others = "the others" if answer.chosen else "it" if len(rows) == 1 else "them"
    lines = [f"What would make {others} fit:"]
    for change, names in changed.items():
        who = "any" if len(changed) == 1 and len(names) > 2 else ", ".join(names)
        lines += wrapped(f"{who}: {change}", "  ", "    ")
    return lines


def _change(one: Candidate, request: Request) -> str:
    change = smallest_change(one.setup, request.fits, per_node=request.gpus_per_node)
    settings = lowering_settings(one.setup, one.memory)
    each = (f"{name} (up to {gb(size)} GB)" for name, size in settings.items())
    found = (change.flags if change else "", ", ".join(each))
    if any(found):
        return "; or ".join(filter(None, found))
    memory = request.memory(smallest_of(one.setup))
    if memory.lacks_ram:
        return f"nodes with more RAM than {gb(memory.host_limit)} GB (--host-memory)"
    return f"nothing; {gb(memory.binding.bytes)} GB of {memory.binding.name} stay at the very least"


def adapters(answer: Answer) -> Sequence[str]:
    """Return what training adapters only would take, where training everything is hard."""
    chosen, request = answer.chosen, answer.request
    easy = chosen is not None and chosen.setup.offload_optimizer is Offload.NONE
    if easy or request.adapter is not None or request.strategy is not None:
        return ()
    one = adapters_that_fit(request)
    if one is None:
        return ()
    needs = f"{gb(one.memory.device.likely)} GB"
    return wrapped(f"To train adapters only would take {needs}: --strategy {one.name}.")


def refusals(answer: Answer) -> Sequence[str]:
    """Return what cannot be run at all, and why."""
    reasons: dict[str, list[str]] = {}
    for refused in answer.refused:
        for problem in refused.problems:
            reasons.setdefault(problem.message, []).append(refused.name)
    lines: list[str] = []
    for reason, names in reasons.items():
        lines += wrapped(f"{', '.join(names)}: {reason}", "  ", "    ")
    return ["Refused:", *lines] if lines else ()


def assumptions(answer: Answer) -> Sequence[str]:
    """Return what was not given and had to be assumed, and what was measured."""
    lines: list[str] = []
    if answer.assumed:
        lines += wrapped("; ".join(answer.assumed) + ".", "Assumed: ", " " * 9)
    calibration = answer.request.calibration
    if calibration is not None:
        by = "clusterkit estimate --calibrate, bench collectives --save"
        text = f"{calibration.subject} ({by})."
        lines += wrapped(text, "Measured: ", " " * 10)
    return lines


def warnings(one: Candidate) -> Sequence[str]:
    """Return what should rather not be done."""
    lines: list[str] = []
    for problem in warnings_for(one):
        text = problem.message + (f" ({problem.hint})" if problem.hint else "")
        first, *rest = wrapped(text, "warning: ", " " * 9)
        lines += [first.replace("warning:", console.coloured("warning:", "yellow"), 1), *rest]
    return lines


def explanation(one: Candidate) -> Sequence[str]:
    """Return every term of a strategy with its formula and source."""
    title = f"{one.name}, term by term (GB = 10^9 bytes)"
    return [console.bold(title), *_memory(one.memory), *_speed(one.speed)]


def _memory(memory: Memory) -> Iterator[str]:
    for phase in memory.phases:
        mark = "  <- the peak" if phase is memory.peak else ""
        yield ""
        yield f"{phase.name}: {gb(phase.bytes)} GB{mark}"
        for term in sorted(phase.terms, key=lambda term: -term.bytes):
            yield f"  {gb(term.bytes):>8}  {term.name} ({term.kind})"
            yield from wrapped(f"= {term.formula}", " " * 12, " " * 12)
            yield from wrapped(f"[{term.source}]", " " * 12, " " * 12)
    yield ""
    yield f"allocated                {gb(memory.allocated)} GB"
    yield f"reserved                 {gb_range(memory.reserved)} GB"
    yield f"as nvidia-smi shows it   {gb_range(memory.device)} GB"
    yield f"limit, margin taken off  {gb(memory.limit)} GB"


def _speed(speed: Speed) -> Iterator[str]:
    yield ""
    yield f"a step: {span(speed.step_s)} s"
    for what, seconds in (
        ("computing", speed.compute_s),
        ("idle stages of the pipeline", speed.bubble_s),
        ("transfers that computing does not hide", speed.exposed_s),
        ("offloaded states", speed.offload_s),
    ):
        if seconds:
            yield f"  {seconds:8.3f} s  {what}"
    if speed.transfers:
        yield "of the transfers, hidden or not:"
    for transfer in speed.transfers:
        how = "hidden" if transfer.hidden else "waited for"
        sent = f"{gb(transfer.bytes)} GB in {transfer.messages:,} messages"
        yield f"  {transfer.seconds:8.3f} s  {transfer.name}, {sent}, {how}"
        yield from wrapped(f"= {transfer.formula}", " " * 14, " " * 14)


def curve(answer: Answer) -> Sequence[str]:
    """Return throughput over the number of GPUs."""
    one = answer.subject
    title = f"{one.name} on other numbers of GPUs, the same micro batch on each"
    lines = [console.bold(title), f"  {'GPUs':>7}  {'tokens/s':>12}  efficiency"]
    for point in answer.points():
        bar = "#" * round(_BAR * point.efficiency)
        marks = {one.setup.gpus_per_node: "one node", answer.request.gpus: "asked"}
        mark = f"  <- {marks[point.gpus]}" if point.gpus in marks else ""
        figures = f"{point.gpus:>7,}  {point.tokens_per_s:>12,.0f}  {point.efficiency:>5.0%}"
        lines.append(f"  {figures}  {bar:<{_BAR}}{mark}".rstrip())
    return lines


def bill(answer: Answer) -> Sequence[str]:
    """Return how long the asked number of tokens takes, and what it costs."""
    one, tokens, price = answer.subject, answer.request.tokens or 0.0, answer.request.price
    cost = bill_of(one.setup, one.speed, tokens, price=price)
    text = f"{count(tokens)} tokens with {one.name}: {span(cost.days)} days, "
    text += f"{span(cost.gpu_hours)} GPU hours"
    if cost.price is not None:
        text += f", which cost {span(cost.price)} at {price:.4g} each"
    return wrapped(f"{text} (no failures, no pauses).")


def power(answer: Answer) -> Sequence[str]:
    """Return what a power limit costs: throughput of the strategy, energy of what was measured."""
    one, limit = answer.subject, answer.request.gpu.power
    kept = one.speed.of_full_power
    if limit is None or kept is None:
        return ()
    slower = _percent(1 - kept.high, 1 - kept.low)
    text = f"At {limit.watts:g} W of {limit.default_watts:g}: {one.name} is {slower} slower; the "
    text += f"GPUs took {_percent(*limit.energies)} of the energy for a step in what was measured"
    return wrapped(f"{text} ({', '.join(limit.trainings)}).")


def _percent(low: float, high: float) -> str:
    """Return `4 to 9 %`, or one figure where both round to it."""
    ends = [f"{100 * part:.0f}" for part in (low, high)]
    return " to ".join(dict.fromkeys(ends)) + " %"


def renting(request: Request) -> Sequence[str]:
    """Return what the rented machines cost, and from how much use on owning some costs less."""
    lines = wrapped(f"Rented: {request.instance}.") if request.instance is not None else ()
    if request.owned is None or request.price is None:
        return lines
    owned = request.owned
    found = break_even(owned, rent_per_hour=request.gpus * request.price)
    years = f"{owned.years:g} year{'s' if owned.years != 1 else ''}"
    text = f"Owned for {owned.price:,.0f} and {years}, an hour costs {found.own_per_hour:,.2f} at "
    text += f"work all the time ({found.energy_per_hour:,.2f} of it energy), rented "
    text += f"{found.rent_per_hour:,.2f}. "
    if found.hours is None or found.utilisation is None:
        text += "Owning never costs less in that time."
    else:
        text += f"Owning costs less from {found.hours:,.0f} hours at work on, "
        text += f"{found.utilisation:.0%} of the time."
    return (*lines, *wrapped(f"{text} (No staff, no space, no resale.)"))


def ranking(rows: Sequence[Rented]) -> Sequence[str]:
    """Return two lines for each rented machine: days and money that the tokens take, and with what.

    So they fit 80 columns, whatever the names of machine and strategy.
    """
    cells = [
        (
            row.instance.name,
            span(row.bill.days) if row.bill else "-",
            span(row.bill.price) if row.bill and row.bill.price else "-",
            f"{row.instance.per_gpu:.2f}",
        )
        for row in rows
    ]
    first, *lines = columns([("MACHINE", "DAYS", "USD", "GPU HOUR"), *cells], "<>>>")
    more = [f"  {row.strategy or 'nothing fits'}, price of {row.instance.as_of}" for row in rows]
    unknown = [row.instance.name for row in rows if row.instance.network is None]
    note = f"What joins machines of {', '.join(unknown)} is not known: as usual with such GPUs."
    both = (line for pair in zip(lines, more, strict=True) for line in pair)
    return (console.bold(first), *both, *(wrapped(note) if unknown else ()))


def counts(found: Smallest) -> Sequence[str]:
    """Return a line for each number of GPUs that was tried, and which of them to take."""
    answer, chosen = found.answer, found.answer.chosen
    title = f"{_sizes(answer.request)}, on how many {answer.request.gpu.name}?"
    answers = [one.answer for one in found.tries if one.answer is not None]
    width = max(len("strategy"), *(len(each.subject.name) for each in answers)) + 2
    lines = [console.bold(line) for line in wrapped(title, "", "  ")]
    lines += ["", f"   GPUs  {'strategy':<{width}}GB per GPU"]
    for one in found.tries:
        start = f"{'>' if chosen and one.answer is answer else ' '} {one.gpus:>5,}  "
        if one.answer is None:
            lines += wrapped(one.reason or "", start, " " * len(start))
            continue
        subject = one.answer.subject
        needs, verdict = gb(subject.memory.device.likely), "does not fit"
        if subject.fits:
            verdict = f"{span(subject.speed.tokens_per_s_per_gpu)} tokens/s per GPU"
        elif subject.memory.lacks_ram:
            verdict += f": {_largest(subject.memory)}"
        lines.append(f"{start}{subject.name:<{width}}{needs:>10}  {verdict}")
    lines.append(f"         {'limit':<{width}}{gb(answer.subject.memory.limit):>10}")
    if chosen is None:
        return (*lines, "", *wrapped(f"Up to {found.tries[-1].gpus:,} GPUs {answer.why}."))
    gpus = "1 GPU is" if found.gpus == 1 else f"{found.gpus:,} GPUs are"
    what = "full fine-tuning" if answer.request.adapter is None else "adapters"
    text = f"{gpus} enough for {what}, with {chosen.name}"
    if found.offloaded is not None and found.offloaded.chosen is not None:
        text += f"; {found.offloaded.gpus:,} with {found.offloaded.chosen.name}, which keeps "
        text += "optimizer states outside the GPUs"
    return (*lines, "", *wrapped(f"{text}."), "", *assumptions(answer))


def division(found: Mixed) -> Sequence[str]:
    """Return what each of two kinds of GPUs takes of a step, what that gains, and what limits."""
    request, lines = found.request, []
    title = f"{request.model.name}: {count(request.model.params)} parameters, on "
    title += " and ".join(f"{number} x {gpu}" for number, gpu in found.kinds)
    lines += [console.bold(line) for line in wrapped(title, "", "  ")]
    lines += wrapped(f"{request.global_batch:,} sequences of {request.seq:,} tokens per step")
    if found.strategy is None:
        return (*lines, "", *wrapped(f"No strategy fits on both kinds: {found.why}."))
    rows = [
        (
            *(share.setup.gpu.name, share.setup.micro_batch, gb(share.memory.device.likely)),
            *(gb(share.memory.limit), rounded(share.speed.step_s.likely)),
        )
        for share in found.shares
    ]
    head = ("GPU", "MICRO BATCH", "GB PER GPU", "LIMIT", "S PER STEP")
    first, *rest = columns([head, *rows], "<>>>>")
    sums = " + ".join(
        f"{n} x {share.setup.micro_batch}"
        for (n, _), share in zip(found.kinds, found.shares, strict=True)
    )
    rounds = found.shares[0].setup.accumulation
    text = f"Take {found.strategy}, in the order of the table: ({sums}) x accumulation {rounds} "
    text += f"= global batch {request.global_batch}. A step takes about "
    text += f"{rounded(found.step_s)} s"
    if found.even_s is not None:
        text += f"; with equal micro batches, {rounded(found.even_s)} s"
    text += ". " + (
        f"The memory of {found.full} keeps it from more."
        if found.full
        else f"{found.slowest.setup.gpu.name} sets the pace."
    )
    assumed = wrapped("; ".join(found.assumed) + ".", "Assumed: ", " " * 9)
    how = "How ranks get theirs: docs/how-to/frameworks.md, Nodes of two kinds."
    return (*lines, "", console.bold(first), *rest, "", *wrapped(text), *wrapped(how), "", *assumed)


def gb(amount: float) -> str:
    """Return bytes in GB, which are 10^9 of them."""
    return f"{amount / 1e9:,.1f}"


def gb_range(interval: Interval) -> str:
    """Return what is likely, and both ends."""
    return f"{gb(interval.likely)} ({gb(interval.low)} to {gb(interval.high)})"


def count(number: float) -> str:
    """Return a large number with a letter: 8.03 B."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= scale:
            return f"{number / scale:.3g} {letter}"
    return f"{number:,.0f}"


def span(interval: Interval) -> str:
    """Return both ends of an interval, to the two or three figures that are known."""
    low, high = rounded(interval.low), rounded(interval.high)
    return low if low == high else f"{low}-{high}"


def rounded(number: float) -> str:
    """Return a number to the two or three figures that are known."""
    figures = 3 if number >= 10_000 or 100 <= number < 1000 else 2
    shown = float(f"{number:.{figures}g}")
    return f"{shown:,.0f}" if shown >= 10 else f"{shown:g}"
