"""What the ranks of `bench compute` found, as our program wrote it down, and what is wrong of it.

templates/programs/compute/clusterkit_compute.py writes:

    {"schema": 1, "kind": "clusterkit-compute", "complete": true, "torch": "2.9.0", "ranks": [
      {"node": "n1", "gpu": 0, "device": "NVIDIA H100 80GB HBM3", "uuid": "GPU-..",
       "start_s": 6.2, "dtype": "bfloat16", "size": 8192, "seconds": [0.0015, 0.0016],
       "checks": 3, "failed": 1, "wrong": 2, "detail": "..",
       "readings": [{"when": "before", "exit_code": 0, "text": ".."}]}, null]}

`seconds` has those of one product in each part of the load; `readings`, what nvidia-smi printed, is
kept by one rank of a node; `start_s` is how long a rank took to come. A rank that never said
anything is null, one that began and never answered says who it is alone, and one that could not
multiply has an `error`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from statistics import median, median_high
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from clusterkit.core.errors import UserError
from clusterkit.core.text import figure
from clusterkit.estimate.machines.gpus import Gpu, gpu_named
from clusterkit.observe.bench.allreduce.document import checked, of_ranks
from clusterkit.observe.vitals.sample import slowdowns
from clusterkit.preflight.probes.gpu.vitals import NVIDIA, GpuVitals
from clusterkit.transport.probe import Missing, Output, read_output

KIND = "clusterkit-compute"
FILE = "compute.json"
"""Its name in the folder of results."""
_MOST_RANKS = 100_000

_Count = Annotated[int, Field(strict=True, ge=0, le=1 << 60)]
_Seconds = Annotated[float, Field(strict=True, ge=1e-9, le=1e6, allow_inf_nan=False)]
_Text = Annotated[str, Field(max_length=300)]


class _Reading(BaseModel):
    when: Literal["before", "load", "after"]
    exit_code: Annotated[int, Field(strict=True, ge=-128, le=255)] | None
    text: str


class _Rank(BaseModel):
    node: _Text
    gpu: Annotated[int, Field(strict=True, ge=0, le=4096)]
    device: _Text
    uuid: _Text | None = None
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    size: Annotated[int, Field(strict=True, ge=1, le=1 << 20)] = 1
    seconds: Annotated[list[_Seconds], Field(max_length=10_000)] = []
    checks: _Count = 0
    failed: _Count = 0
    wrong: _Count = 0
    detail: _Text = ""
    error: _Text | None = None
    readings: Annotated[list[_Reading], Field(max_length=16)] = []


class _Document(BaseModel):
    complete: Any = False
    torch: _Text | None = None
    ranks: Annotated[list[_Rank | None], Field(min_length=1, max_length=_MOST_RANKS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A GPU at one moment."""

    when: str
    """`before`, `load` or `after`."""
    gpu: GpuVitals


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One rank, and what it found; None is what it did not say."""

    rank: int
    node: str | None
    gpu: int | None = None
    """The index that nvidia-smi knows it by, or that of the rank on its node."""
    device: str | None = None
    """The GPU, or `cpu`."""
    dtype: str | None = None
    size: int | None = None
    tflops: float | None = None
    """The median over the parts of the load."""
    slowest_tflops: float | None = None
    fastest_tflops: float | None = None
    checks: int = 0
    failed_checks: int = 0
    """How many of these products were wrong."""
    wrong_elements: int = 0
    """In all of them."""
    detail: str = ""
    error: str | None = None
    readings: tuple[Reading, ...] = ()

    @property
    def slot(self) -> str:
        """What `gpu` counts."""
        return "slot" if self.device == "cpu" else "GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run."""

    workers: tuple[Worker, ...] = ()
    """In rank order."""
    torch: str | None = None
    complete: bool = False

    @property
    def measured(self) -> bool:
        """Whether any rank has multiplied anything, or says why it could not."""
        return any(one.tflops is not None or one.error is not None for one in self.workers)


def read_document(document: Mapping[str, Any], names: Sequence[str | None] | None = None) -> Result:
    """Return the result that our program has written down.

    With `names`, the node of each rank as the job knows it (None where it does not), the document
    has to be of these ranks.

    Raises:
        Unparsed: it is another document, damaged, or of other ranks than the job has.
    """
    read = checked(_Document, document, kind=KIND)
    known = of_ranks(read.ranks, names)
    readings = dict(_readings(filter(None, read.ranks)))
    workers = [
        _worker(rank, one, readings) if one else Worker(rank=rank, node=known[rank])
        for rank, one in enumerate(read.ranks)
    ]
    return Result(workers=tuple(workers), torch=read.torch, complete=read.complete is True)


def _readings(ranks: Iterator[_Rank]) -> Iterator[tuple[tuple[str, str], tuple[Reading, ...]]]:
    """Yield what was read of each GPU, by its node and UUID."""
    for rank in ranks:
        found: dict[str, list[Reading]] = {}
        for reading in rank.readings:
            said = read_output(NVIDIA, Output(stdout=reading.text, exit_code=reading.exit_code))
            for gpu in () if isinstance(said, Missing) else said.gpus:
                found.setdefault(gpu.uuid or "", []).append(Reading(when=reading.when, gpu=gpu))
        for uuid, kept in found.items():
            yield (rank.node, uuid), tuple(kept)


def _worker(
    rank: int, one: _Rank, readings: Mapping[tuple[str, str], tuple[Reading, ...]]
) -> Worker:
    mine = readings.get((one.node, one.uuid or "-"), ())
    rates = sorted(2 * one.size**3 / seconds / 1e12 for seconds in one.seconds)
    return Worker(
        rank=rank,
        node=one.node,
        gpu=mine[0].gpu.index if mine else one.gpu,
        device=one.device,
        dtype=one.dtype,
        size=one.size if rates else None,
        tflops=median(rates) if rates else None,
        slowest_tflops=rates[0] if rates else None,
        fastest_tflops=rates[-1] if rates else None,
        checks=one.checks,
        failed_checks=one.failed,
        wrong_elements=one.wrong,
        detail=one.detail,
        error=one.error,
        readings=mine,
    )


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
