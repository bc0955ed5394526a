"""Batch arithmetic: micro batch x accumulation x data-parallel ranks = global batch."""

from __future__ import annotations

from dataclasses import dataclass

from clusterkit.core.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How the sequences of a step are divided."""

    ranks: int
    """Data-parallel ranks."""
    micro_batch: int
    """Sequences that a rank takes at once."""
    accumulation: int
    """How often it does so in a step."""

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.ranks * self.micro_batch * self.accumulation


def solve_batch(
    *,
    ranks: int,
    micro_batch: int | None = None,
    accumulation: int | None = None,
    global_batch: int | None = None,
) -> Batch:
    """Return the batch with whichever number is missing; where several are, they are 1.

    Raises:
        UserError: the numbers contradict each other, or do not divide.
    """
    for flag, number in (
        ("--micro-batch", micro_batch),
        ("--accumulation", accumulation),
        ("--global-batch", global_batch),
    ):
        if number is not None and number < 1:
            raise UserError(f"{flag} is {number}", hint=f"give a number from 1 on: {flag} 1")
    if global_batch is None:
        return Batch(ranks=ranks, micro_batch=micro_batch or 1, accumulation=accumulation or 1)
    if micro_batch is None and accumulation is not None:
        micro = _divided(
            global_batch, ranks * accumulation, _words(ranks, "accumulation", accumulation)
        )
        return Batch(ranks=ranks, micro_batch=micro, accumulation=accumulation)
    micro = micro_batch or 1
    steps = _divided(global_batch, ranks * micro, _words(ranks, "micro batch", micro))
    if accumulation not in {None, steps}:
        raise UserError(
            f"a micro batch of {micro} x {accumulation} accumulations x {ranks} ranks is a global "
            f"batch of {micro * (accumulation or 1) * ranks}, not {global_batch}",
            hint=f"leave one of them out, or --accumulation {steps}",
        )
    return Batch(ranks=ranks, micro_batch=micro, accumulation=steps)


def _words(ranks: int, name: str, number: int) -> str:
    return f"{ranks} data-parallel rank{'s' if ranks > 1 else ''} x {name} {number}"


def _divided(total: int, parts: int, words: str) -> int:
    if total % parts == 0:
        return total // parts
    below, above = total // parts * parts, -(-total // parts) * parts
    nearest = f"{below} or {above}" if below else f"{above}"
    raise UserError(
        f"a global batch of {total} does not divide into {words} ({parts} sequences at a time)",
        hint=f"the nearest that does: --global-batch {nearest}",
    )
