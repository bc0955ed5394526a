"""What is wrong with GPUs that multiplied the same matrices: each beside the others of its kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from statistics import median_high
from typing import Any

from clusterkit.core.errors import UserError
from clusterkit.core.text import figure
from clusterkit.estimate.machines.gpus import Gpu, gpu_named
from clusterkit.observe.bench.compute.document import Result, Worker
from clusterkit.observe.vitals.sample import slowdowns

SLOW = 0.9
"""A GPU below this share of the median of its kind is slow."""
SLOW_CPU = 0.6
"""Likewise for CPUs, which others use as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The ranks with the same GPU, or those without one."""

    device: str
    workers: tuple[Worker, ...]
    median: float
    """TFLOP/s; of an even number the upper one, so that of two GPUs the slow one is behind."""
    known: Gpu | None

    @property
    def of_peak(self) -> float | None:
        """The median over the dense peak of the card; None where that is not known."""
        return self.median / self.known.half_tflops if self.known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong with a rank: `wrong`, `silent`, `failed`, `slow` or `throttled`."""

    kind: str
    rank: int
    node: str | None
    gpu: int | None
    where: str
    """The place in words."""
    summary: str


def kinds(result: Result) -> tuple[Kind, ...]:
    """Return the kinds of GPUs that have multiplied, in the order of their first rank."""
    names = dict.fromkeys(one.device for one in result.workers if one.tflops is not None)
    return tuple(_kind(result, name) for name in names if name is not None)


def _kind(result: Result, device: str) -> Kind:
    workers = tuple(one for one in result.workers if one.device == device and one.tflops)
    known = None
    if device != "cpu":
        with suppress(UserError):  # one that the estimate does not know, or several
            known = gpu_named(device)
    middle = median_high(one.tflops or 0.0 for one in workers)
    return Kind(device=device, workers=workers, median=middle, known=known)


def share(kind: Kind, worker: Worker) -> float:
    """Return what a rank reaches of the median of its kind."""
    return (worker.tflops or 0.0) / kind.median


def correct(result: Result) -> bool | None:
    """Return whether all products were right; None where not all ranks have checked some."""
    if any(one.failed_checks or one.wrong_elements for one in result.workers):
        return False
    return True if result.workers and all(one.checks for one in result.workers) else None


def throttling(worker: Worker, *, harmful: bool = True) -> tuple[str, ...]:
    """Return what held the clocks of a GPU down; without `harmful`, its power cap too."""
    found = slowdowns(reading.gpu for reading in worker.readings)
    return tuple(dict.fromkeys(one.why for one in found if one.harmful or not harmful))


def findings(result: Result) -> tuple[Finding, ...]:
    """Return what is wrong, the worst first."""
    of_device = {kind.device: kind for kind in kinds(result)}
    gpus = any(device != "cpu" for device in of_device)
    found = [
        Finding(
            kind=kind, rank=one.rank, node=one.node, gpu=one.gpu, where=_where(one), summary=summary
        )
        for one in result.workers
        for kind, summary in _of(one, of_device.get(one.device or ""), gpus=gpus)
        if kind != "silent" or result.complete  # else the end of the job is why
    ]
    order = ("wrong", "silent", "failed", "slow", "throttled")
    return tuple(sorted(found, key=lambda one: order.index(one.kind)))


def _where(one: Worker) -> str:
    at = f"rank {one.rank}" if one.gpu is None else f"{one.slot} {one.gpu}"
    return f"{one.node or 'an unknown node'}, {at}"


def _of(one: Worker, kind: Kind | None, *, gpus: bool) -> Iterator[tuple[str, str]]:
    if one.failed_checks or one.wrong_elements:
        first = f", the first: {one.detail}" if one.detail else ""
        what = f"{one.failed_checks} of {one.checks} products are wrong"
        yield "wrong", f"{what}, elements in all: {one.wrong_elements}{first}"
    if one.error is not None:
        yield "failed", one.error
    elif one.tflops is None:
        yield "silent", "never answered"
    elif one.device == "cpu" and gpus:
        yield "failed", "torch sees no GPU there"
    if kind is not None and one.tflops is not None:
        reached = share(kind, one)
        if reached < (SLOW_CPU if one.device == "cpu" else SLOW):
            median = f"{reached:.0%} of the median of {len(kind.workers)}"
            yield "slow", f"{figure(one.tflops)} TFLOP/s, {median}"
    for why in throttling(one):
        yield "throttled", why


def document(result: Result) -> dict[str, Any]:
    """Return what `--json` tells, without the job."""
    of_device = {kind.device: kind for kind in kinds(result)}
    return {
        "torch": result.torch,
        "complete": result.complete,
        "correct": correct(result),
        "nodes": tuple(dict.fromkeys(one.node for one in result.workers if one.node)),
        "ranks": len(result.workers),
        "devices": [
            {
                "device": kind.device,
                "ranks": len(kind.workers),
                "median_tflops": kind.median,
                "peak_tflops": kind.known and kind.known.half_tflops,
                "share_of_peak": kind.of_peak,
                "measured_elsewhere_tflops": kind.known and kind.known.mamf_tflops,
            }
            for kind in of_device.values()
        ],
        "gpus": [_row(one, of_device.get(one.device or "")) for one in result.workers],
        "findings": findings(result),
    }


def _row(one: Worker, kind: Kind | None) -> dict[str, Any]:
    return {
        **asdict(one),
        "share_of_median": share(kind, one) if kind and one.tflops is not None else None,
        "held_down_by": throttling(one, harmful=False),
        "readings": [{"when": reading.when, **asdict(reading.gpu)} for reading in one.readings],
    }
