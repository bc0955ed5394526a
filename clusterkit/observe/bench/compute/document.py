"""What the ranks of `bench compute` found, as our program wrote it down.

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
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from clusterkit.observe.bench.allreduce.document import checked, of_ranks
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
    of_ranks(read.ranks, names)
    readings = dict(_readings(filter(None, read.ranks)))
    workers = [
        _worker(rank, one, readings)
        if one
        else Worker(rank=rank, node=names[rank] if names else None)
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
