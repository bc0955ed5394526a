"""What `clusterkit estimate` shows of one strategy when asked: terms, scaling, cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from clusterkit.cli.estimate.units import count, gb, gb_range, paragraph, span
from clusterkit.cli.frame import console
from clusterkit.estimate.speed.step_time import bill_of

if TYPE_CHECKING:
    from clusterkit.estimate.advice.recommend import Answer, Candidate
    from clusterkit.estimate.results import Memory, Speed

_BAR = 30


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
            yield from paragraph(f"= {term.formula}", indent=12)
            yield from paragraph(f"[{term.source}]", indent=12)
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
        yield from paragraph(f"= {transfer.formula}", indent=14)


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
        text += f", which cost {span(cost.price)} at {price:g} each"
    return paragraph(f"{text} (no failures, no pauses).")
