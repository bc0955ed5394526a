"""What of an answer is worth showing, and what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusterkit.estimate.advice.recommend import Candidate, Judge, Tried
from clusterkit.estimate.query.parse import Asked
from clusterkit.estimate.request import Wish
from clusterkit.estimate.setup import Offload
from clusterkit.estimate.speed.step_time import Point, scaling


def worth_showing(rows: Sequence[Candidate]) -> tuple[Sequence[Candidate], int]:
    """Leave out offloading where something fits without it; return how many that are."""
    kept = [row for row in rows if row.setup.offload_optimizer is Offload.NONE]
    if any(row.fits for row in kept):
        return kept, len(rows) - len(kept)
    return rows, 0


def assumed(asked: Asked, judge: Judge, tried: Tried) -> Sequence[str]:
    """Return what was not said and had to be assumed; the RAM only where something uses it."""
    shown, _ = worth_showing(tried.candidates)
    if judge.host_memory is not None or not any(one.memory.host_bytes for one in shown):
        return asked.assumed
    limit = max(one.memory.host_limit for one in shown)
    return (*asked.assumed, f"{limit / 1e9:,.1f} GB of RAM in each node (--host-memory)")


def counts_of(wish: Wish) -> tuple[int, ...]:
    """Return the numbers of GPUs of a scaling curve: doubled from 1 on, well beyond the asked."""
    most = max(64, 8 * wish.gpus)
    counts = {1 << power for power in range(most.bit_length())} | {wish.gpus}
    return tuple(sorted(number for number in counts if number <= most))


def points_of(wish: Wish, judge: Judge, one: Candidate) -> Sequence[Point]:
    """Return the scaling curve of a strategy, from the first number of GPUs on that fits."""
    setup = replace(one.setup, gpus_per_node=wish.gpus_per_node)
    counts = counts_of(wish)
    fitting = [count for count in counts if judge.fits(replace(setup, gpus=count))]
    return scaling(setup, fitting or counts, calibration=judge.calibration)
