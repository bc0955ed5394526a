"""What the ranks of `bench storage` found, what is wrong, and how often to write a checkpoint.

templates/programs/compute/clusterkit_storage.py writes:

    {"schema": 1, "kind": "clusterkit-storage", "complete": true, "torch": "2.9.0", "ranks": [
      {"node": "n1", "slot": 0, "path": "/shared/runs", "file_system": "nfs4", "start_s": 6.2,
       "free": 80000000000, "total": 100000000000, "size": 1073741824,
       "one": {"write": {"bytes": 1073741824, "seconds": 2.5, "fsync_s": 1.9},
               "read": {"bytes": 1073741824, "seconds": 1.1, "from": "disk"}},
       "all": {..}, "small": {"files": 812, "bytes": 16384, "seconds": 5.0}}, null]}

`size` is what a node was to write, `one` the first rank of each node, `all` all of them at the same
time. A rank that never said anything is null, and one that could not write has an `error`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median_high
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from clusterkit.core.text import figure
from clusterkit.observe.bench.allreduce.document import checked, of_ranks

KIND = "clusterkit-storage"
FILE = "storage.json"
"""Its name in the folder of results."""
_MOST_RANKS = 100_000

_Bytes = Annotated[int, Field(strict=True, ge=0, le=1 << 60)]
_Seconds = Annotated[float, Field(strict=True, ge=1e-9, le=1e6, allow_inf_nan=False)]
_Part = Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)]
_Text = Annotated[str, Field(max_length=300)]


class Write(BaseModel, frozen=True):
    """A file that was written, until it was safe on the disk."""

    bytes: Annotated[int, Field(strict=True, ge=1, le=1 << 60)]
    seconds: _Seconds
    fsync_s: _Part
    """The last part of these."""


class Read(BaseModel, frozen=True):
    """That file, read again."""

    bytes: Annotated[int, Field(strict=True, ge=1, le=1 << 60)]
    seconds: _Seconds
    source: Literal["disk", "direct", "memory", "unknown"] = Field(alias="from")
    """`disk` where its pages were seen to be gone from the node's memory, `direct` where they
    stayed and it was read around them, `memory` where neither could be, `unknown` where nobody
    tells."""


class Part(BaseModel, frozen=True):
    """One process of a node, or all of them."""

    write: Write
    read: Read | None = None


class Small(BaseModel, frozen=True):
    """Files that were created one after the other, each with its own fsync."""

    files: Annotated[int, Field(strict=True, ge=1, le=1 << 40)]
    bytes: Annotated[int, Field(strict=True, ge=1, le=1 << 40)]
    seconds: _Seconds


class Worker(BaseModel, frozen=True):
    """One rank, and what it found; None is what it did not say."""

    rank: int = 0
    node: _Text | None = None
    slot: Annotated[int, Field(strict=True, ge=0, le=4096)] | None = None
    path: Annotated[str, Field(max_length=4096)] | None = None
    file_system: _Text | None = None
    free: _Bytes | None = None
    total: _Bytes | None = None
    size: _Bytes | None = None
    """Bytes that its node was to write."""
    error: _Text | None = None
    one: Part | None = None
    all: Part | None = None
    small: Small | None = None


class _Rank(Worker, frozen=True):
    """One that has said who it is; its number is its place in the document."""

    node: _Text
    slot: Annotated[int, Field(strict=True, ge=0, le=4096)]
    path: Annotated[str, Field(max_length=4096)]


class _Document(BaseModel):
    complete: Any = False
    ranks: Annotated[list[_Rank | None], Field(min_length=1, max_length=_MOST_RANKS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run."""

    workers: tuple[Worker, ...] = ()
    """In rank order."""
    complete: bool = False

    @property
    def measured(self) -> bool:
        """Whether any rank has written anything, or says why it could not."""
        return any(one.one or one.all or one.error is not None for one in self.workers)


def read_document(document: Mapping[str, Any], names: Sequence[str | None] | None = None) -> Result:
    """Return the result that our program has written down.

    With `names`, the node of each rank as the job knows it (None where it does not), the document
    has to be of these ranks.

    Raises:
        Unparsed: it is another document, damaged, or of other ranks than the job has.
    """
    read = checked(_Document, document, kind=KIND)
    known = of_ranks(read.ranks, names)
    workers = [
        (one or Worker(node=known[rank])).model_copy(update={"rank": rank})
        for rank, one in enumerate(read.ranks)
    ]
    return Result(workers=tuple(workers), complete=read.complete is True)


SLOW = 0.6
"""A node below this share of the median is slow; others use the storage as well."""
NODE_MTBF_S = 128 * 7.9 * 3600
"""Of one node with eight GPUs, in the mean: jobs of 1,024 GPUs failed every 7.9 hours on Meta's
research clusters (Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research
Clusters", HPCA 2025)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node; rates in bytes per second, None for what was not measured."""

    name: str
    path: str | None
    file_system: str | None
    write: float | None
    """Of one process, until all was safe on the disk."""
    write_all: float | None
    """Of all processes together."""
    read: float | None
    read_all: float | None
    read_from: str | None
    """Where it was read from, of all reads the least that can be said."""
    small_per_s: float | None
    checkpoint_s: float | None
    """What the whole checkpoint of this node takes, by all its processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong: `silent`, `failed` or `slow`."""

    kind: str
    rank: int | None
    node: str | None
    summary: str

    @property
    def where(self) -> str:
        """The place in words."""
        at = self.node or "an unknown node"
        return at if self.rank is None else f"{at}, rank {self.rank}"


_MEASURES: tuple[tuple[str, Callable[[Node], float | None]], ...] = (
    ("one process writes", lambda node: node.write),
    ("all processes write", lambda node: node.write_all),
    ("one process reads", lambda node: node.read),
    ("all processes read", lambda node: node.read_all),
    ("small files", lambda node: node.small_per_s),
)


def nodes(result: Result) -> tuple[Node, ...]:
    """Return what each node reached, in the order of their first rank."""
    of_each: dict[str, list[Worker]] = {}
    for one in result.workers:
        if one.node is not None:
            of_each.setdefault(one.node, []).append(one)
    return tuple(_node(name, workers) for name, workers in of_each.items())


def _node(name: str, workers: list[Worker]) -> Node:
    first = workers[0]
    single = [one.one for one in workers if one.one]
    each = [one.all for one in workers if one.all]
    each = each if len(each) == len(workers) else []
    small = next((one.small for one in workers if one.small), None)
    size, writes = first.size, _sum(each or single, "write")
    whole = None if writes is None or size is None else size / writes
    sources = {part.read.source for part in (*single, *each) if part.read}
    order = ("unknown", "memory", "direct", "disk")
    return Node(
        name=name,
        path=first.path,
        file_system=first.file_system,
        write=_sum(single, "write"),
        write_all=_sum(each, "write"),
        read=_sum(single, "read"),
        read_all=_sum(each, "read"),
        read_from=next((one for one in order if one in sources), None),
        small_per_s=small.files / small.seconds if small else None,
        checkpoint_s=whole,
    )


def _sum(parts: list[Part], what: str) -> float | None:
    """Return the rate of processes that work at the same time: as slow as the last one."""
    done = [getattr(part, what) for part in parts]
    if not done or None in done:
        return None
    rate: float = sum(one.bytes for one in done) / max(one.seconds for one in done)
    return rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """When to write checkpoints that take `write_s`, where a failure comes every `mtbf_s`."""

    write_s: float
    mtbf_s: float
    young_s: float
    daly_s: float
    lost: float
    """The share of all time that goes into checkpoints and steps that are computed again."""


def interval(write_s: float, mtbf_s: float) -> Interval:
    """Return how long to compute between two checkpoints, so that the least time is lost.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications
    of the ACM 17 (1974) 530: sqrt(2 w M). J. T. Daly, "A higher order estimate of the optimum
    checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006) 303,
    equation 37: sqrt(2 w M) (1 + sqrt(w / 2M) / 3 + w / 18M) - w for w < 2M, else M.
    What is lost, to the first order: a checkpoint in each interval, and half an interval with each
    failure.
    """
    young = sqrt(2 * write_s * mtbf_s)
    part = write_s / (2 * mtbf_s)
    daly = young * (1 + sqrt(part) / 3 + part / 9) - write_s if part < 1 else mtbf_s
    lost = min(1.0, write_s / (daly + write_s) + (daly + write_s) / (2 * mtbf_s))
    return Interval(write_s=write_s, mtbf_s=mtbf_s, young_s=young, daly_s=daly, lost=lost)


def checkpoints(result: Result, mtbf_s: float | None = None) -> Interval | None:
    """Return how often to write a checkpoint; without `mtbf_s`, by the number of nodes."""
    known = nodes(result)
    slowest = max((one.checkpoint_s for one in known if one.checkpoint_s), default=None)
    return None if slowest is None else interval(slowest, mtbf_s or NODE_MTBF_S / len(known))


def findings(result: Result) -> tuple[Finding, ...]:
    """Return what is wrong, the worst first."""
    return (*_of_ranks(result), *_slow(nodes(result)))


def _of_ranks(result: Result) -> Iterator[Finding]:
    """Yield what is wrong with ranks; of a node that cannot write, once."""
    told = set()
    silent = []
    for one in result.workers:
        if one.error is not None and (one.node, one.error) not in told:
            told.add((one.node, one.error))
            summary = f"{one.path}: {one.error}"
            yield Finding(kind="failed", rank=one.rank, node=one.node, summary=summary)
        elif one.error is None and not (one.one or one.all) and result.complete:
            summary = "never answered"
            silent.append(Finding(kind="silent", rank=one.rank, node=one.node, summary=summary))
    yield from silent


def _slow(known: tuple[Node, ...]) -> Iterator[Finding]:
    for what, rate_of in _MEASURES:
        rates = {node.name: rate for node in known if (rate := rate_of(node)) is not None}
        if len(rates) < 2:
            continue
        middle = median_high(rates.values())
        for name, rate in rates.items():
            if rate < SLOW * middle:
                unit = f"{figure(rate)} a second"
                reached = unit if what == "small files" else f"{figure(rate / 1e6)} MB/s"
                summary = f"{what}: {reached}, {rate / middle:.0%} of the median of {len(rates)}"
                yield Finding(kind="slow", rank=None, node=name, summary=summary)


def document(result: Result, mtbf_s: float | None = None) -> dict[str, Any]:
    """Return what `--json` tells, without the job."""
    known = nodes(result)
    return {
        "complete": result.complete,
        "size": max((one.size for one in result.workers if one.size), default=None),
        "ranks": len(result.workers),
        "nodes": known,
        "interval": checkpoints(result, mtbf_s),
        "processes": [one.model_dump(by_alias=True) for one in result.workers],
        "findings": findings(result),
    }
