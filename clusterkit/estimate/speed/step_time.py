"""How long a step takes, how well it scales, and what training costs.

A step is what a GPU computes, the idle time of a pipeline, transfers that computing does not hide,
and what offloaded states cost. The answer is an interval: it says how far published runs of the
same sort of GPU lie apart, and shrinks once a step was measured (`calibration`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from clusterkit.estimate import FACTS
from clusterkit.estimate.factors import Calibration
from clusterkit.estimate.results import Interval, Speed, Transfer
from clusterkit.estimate.setup import Precision, Setup
from clusterkit.estimate.speed.communication import transfers_of
from clusterkit.estimate.speed.compute import (
    Compute,
    compressing_s,
    compute_of,
    needed_flops,
    offload_s,
)

_DAY_S = 86_400


def speed_of(setup: Setup, *, calibration: Calibration | None = None) -> Speed:
    """Return how long a step takes, part by part, and the throughput that follows.

    A power limit slows computing, not transfers, as much as it slowed the trainings of `power.tsv`.
    """
    measured = (calibration or Calibration()).on(setup.gpu.name)
    transfers = transfers_of(setup, calibration=measured)
    compute, power = compute_of(setup), setup.gpu.power

    def parts_at(speed: float) -> dict[str, float]:
        speedup = measured.utilisation_scale * speed
        return _parts(setup, compute, transfers, speedup=speedup)

    slow, usual, fast = power.speeds if power is not None else (1.0, 1.0, 1.0)
    parts = {speed: parts_at(speed) for speed in {slow, usual, fast}}
    low, likely, high = (sum(parts[speed].values()) for speed in (fast, usual, slow))
    seconds = Interval(low=low, likely=likely, high=high)
    known, more = setup.gpu.architecture, compressing_s(setup)
    least, most = known.measured_rate if measured.measured_step else known.rate
    step = Interval(
        low=(low - more.likely + more.low) / most,
        likely=likely,
        high=(high - more.likely + more.high) / least,
    )
    return Speed(
        transfers=transfers,
        **parts[usual],
        step_s=step,
        tokens_per_s_per_gpu=_over(setup.tokens / setup.gpus, step),
        mfu=_over(mfu_of(setup, setup.tokens / setup.gpus), step),
        of_full_power=None if power is None else _over(sum(parts_at(1.0).values()), seconds),
    )


def utilisation_of(setup: Setup, step_s: float, *, calibration: Calibration | None = None) -> float:
    """Return the factor on computing with which a step of `setup` takes `step_s`.

    What does not compute stays as it is; where that alone takes longer, the factor is the largest.
    """
    measured = calibration or Calibration()
    transfers, compute = transfers_of(setup, calibration=measured), compute_of(setup)

    def is_below(speedup: float) -> bool:
        return sum(_parts(setup, compute, transfers, speedup=speedup).values()) > step_s

    return factor_between(0.01, 100.0, is_below)


def factor_between(low: float, high: float, is_below: Callable[[float], bool]) -> float:
    """Return where a factor is no longer below the one that is looked for, by halving."""
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return math.sqrt(low * high)


def _parts(
    setup: Setup, compute: Compute, transfers: tuple[Transfer, ...], *, speedup: float
) -> dict[str, float]:
    """Return the seconds of a step by what they are for, as `Speed` has them."""
    copies = max(1, min(setup.nodes, setup.dp * setup.cp))
    waiting = 1 + FACTS["wait_per_doubling"] * math.log2(copies)
    faster = speedup / waiting
    compute = replace(
        compute,
        forward_s=compute.forward_s / faster,
        backward_s=compute.backward_s / faster,
        optimizer_s=compute.optimizer_s / faster,
    )
    # A stage waits for tensor parallelism with every micro batch.
    tensor = sum(t.seconds for t in transfers if t.group == "tensor" and not t.hidden)
    stage_s = compute.micro_batch_s + tensor / setup.accumulation
    return {
        "compute_s": setup.accumulation * compute.micro_batch_s
        + compute.optimizer_s
        + compressing_s(setup).likely,
        "bubble_s": (setup.pp - 1) / setup.vpp * stage_s,
        "exposed_s": exposed_s(compute, transfers),
        "offload_s": offload_s(setup),
    }


def mfu_of(setup: Setup, tokens_per_s_per_gpu: float) -> float:
    """Return the operations of the model over the dense peak of the precision's 16-bit products.

    With fp8 it is still the peak of bf16, so that figures can be compared: it may pass 1.
    """
    peak = setup.gpu.half_tflops
    if setup.precision in {Precision.FP16, Precision.AMP_FP16}:
        peak = setup.gpu.fp16_tflops
    return tokens_per_s_per_gpu * needed_flops(setup) / (peak * 1e12)


def exposed_s(compute: Compute, transfers: Iterable[Transfer]) -> float:
    """Return the seconds of a step in which a GPU waits for transfers.

    What goes block by block hides behind the forward or the backward pass of the same micro batch,
    all but its first piece; what is done once per step, behind the last backward pass.
    """
    waits = 0.0
    behind: dict[tuple[str, int], float] = {}
    for transfer in transfers:
        if not transfer.hidden:
            waits += transfer.seconds
            continue
        key = (transfer.during, transfer.times)
        behind[key] = behind.get(key, 0.0) + transfer.seconds
        waits += transfer.seconds / max(1, transfer.messages // transfer.times)
    hides = {"forward": compute.forward_s, "backward": compute.backward_s}
    for (during, times), seconds in behind.items():
        each = seconds / times
        waits += times * max(0.0, each - hides[during])
        waits += times * FACTS["contention"] * min(each, hides[during])
    return waits


def _over(amount: float, seconds: Interval) -> Interval:
    return Interval(
        low=amount / seconds.high, likely=amount / seconds.likely, high=amount / seconds.low
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One number of GPUs on a scaling curve."""

    gpus: int
    tokens_per_s: float
    """Of all of them, likely."""
    efficiency: float
    """Throughput of a GPU over that of one in the smallest setup of the curve, or in one node where
    that is smaller. It may pass 1: what more ranks share takes each of them less time."""


def scaling(
    setup: Setup, counts: Iterable[int], *, calibration: Calibration | None = None
) -> tuple[Point, ...]:
    """Return throughput over numbers of GPUs, with the micro batch and accumulation of `setup`.

    Counts that the model-parallel ranks do not divide are left out. All are compared with the
    first, or with one node where the first is several: a slow network shows, then, although
    nothing was asked about less of it.
    """
    ranks = setup.tp * setup.pp * setup.cp
    fitting = sorted({count for count in counts if count >= ranks and count % ranks == 0})

    def rate_of(count: int) -> float:
        group = min(setup.shard_group, count) if setup.shard_group else None
        speed = speed_of(replace(setup, gpus=count, shard_group=group), calibration=calibration)
        return speed.tokens_per_s_per_gpu.likely

    if not fitting:
        return ()
    node = setup.gpus_per_node // ranks * ranks
    usual, rates = rate_of(min(fitting[0], node or fitting[0])), map(rate_of, fitting)
    return tuple(
        Point(gpus=count, tokens_per_s=rate * count, efficiency=rate / usual)
        for count, rate in zip(fitting, rates, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What a budget of tokens takes."""

    tokens: float
    days: Interval
    gpu_hours: Interval
    price: Interval | None
    """At a price per GPU hour; None where none was given."""


def bill_of(setup: Setup, speed: Speed, tokens: float, *, price: float | None = None) -> Bill:
    """Return how long and how much `tokens` tokens take, with no failures and no pauses."""
    gpu_hours = _over(tokens, speed.tokens_per_s_per_gpu).each(lambda seconds: seconds / 3600)
    return Bill(
        tokens=tokens,
        days=gpu_hours.each(lambda hours: hours * (3600 / setup.gpus / _DAY_S)),
        gpu_hours=gpu_hours,
        price=None if price is None else gpu_hours.each(lambda hours: hours * price),
    )
