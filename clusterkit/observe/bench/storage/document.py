"""What the ranks of `bench storage` found, as our program wrote it down.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

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


class _Rank(BaseModel):
    node: _Text
    slot: Annotated[int, Field(strict=True, ge=0, le=4096)]
    path: Annotated[str, Field(max_length=4096)]
    file_system: _Text | None = None
    free: _Bytes | None = None
    total: _Bytes | None = None
    size: _Bytes | None = None
    one: Part | None = None
    all: Part | None = None
    small: Small | None = None
    error: _Text | None = None


class _Document(BaseModel):
    complete: Any = False
    ranks: Annotated[list[_Rank | None], Field(min_length=1, max_length=_MOST_RANKS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One rank, and what it found; None is what it did not say."""

    rank: int
    node: str | None
    slot: int | None = None
    path: str | None = None
    file_system: str | None = None
    free: int | None = None
    total: int | None = None
    size: int | None = None
    """Bytes that its node was to write."""
    one: Part | None = None
    all: Part | None = None
    small: Small | None = None
    error: str | None = None


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
    of_ranks(read.ranks, names)
    workers = [
        Worker(rank=rank, **dict(one))
        if one
        else Worker(rank=rank, node=names[rank] if names else None)
        for rank, one in enumerate(read.ranks)
    ]
    return Result(workers=tuple(workers), complete=read.complete is True)
