"""What nodes answer when they are asked for the files of a job, piece by piece, and what they tell.

Every field has a type and bounds, and what has others is nonsense of that one node. A node speaks
for itself: of another one it can only say that it has gone, which is a claim and no result.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from clusterkit.core import files
from clusterkit.core.bounds import Attempt, ExitCode, Matching, Moment, NodeName, Pid, Rank, Within
from clusterkit.core.model import JobState
from clusterkit.core.records import record_of
from clusterkit.transport.sync.helper import Helper

MIB = 1 << 20
SMALL_MOST = MIB
"""Bytes of one small file; of a longer one, its end."""
_PIECE_MOST = 1 << 18

Size = Annotated[int, Within(0, 1 << 45)]
Sign = tuple[Size, Annotated[int, Within(-(1 << 62), 1 << 62)]]
"""Bytes and time of the last change (ns), which tell a file from what it was before."""
_Piece = Annotated[int, Within(0, _PIECE_MOST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """a whole small file, or its end."""

    small: str
    sign: Sign
    bytes: Annotated[int, Within(0, SMALL_MOST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """a piece of a log."""

    log: str
    offset: Size
    bytes: _Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePiece:
    """a piece of a result."""

    file: str
    offset: Size
    bytes: _Piece
    last: bool
    mode: Annotated[int, Within(0, 0o7777)]
    sign: Sign


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLarge:
    """how large the results are, where that is too much."""

    too_large: str
    size: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """how many results have names that nobody can print."""

    left_out: Annotated[int, Within(1, 1 << 31)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """that this was all."""

    done: bool


Answer = Small | LogPiece | FilePiece | TooLarge | LeftOut | Done
_KINDS: dict[str, type[Answer]] = {
    "small": Small,
    "log": LogPiece,
    "file": FilePiece,
    "too_large": TooLarge,
    "left_out": LeftOut,
    "done": Done,
}


def next_answer(helper: Helper) -> tuple[Answer, bytes]:
    """Return the next answer of a node with the bytes behind it.

    Raises:
        Nonsense: it is none of those that a node of ours gives.
        RemoteError: the node could not do it, or its time is up.
    """
    document = helper.answer()
    kind = next((kind for key, kind in _KINDS.items() if key in document), Done)
    found: Answer | None = record_of(kind, document)
    if found is None:
        raise helper.nonsense(f"it was asked for {kind.__doc__}")
    return found, helper.take(getattr(found, "bytes", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFile:
    """What stands in `keepers/RANK.json`: which process looks after the node."""

    schema: int = 1
    node: NodeName
    attempt: Attempt
    pid: Pid
    start_time: Annotated[str, Matching("[0-9]{1,20}")]
    """In clock ticks since the boot of the node."""
    boot_id: Annotated[str, Matching("[0-9a-f-]{0,36}")]
    slots: tuple[Rank, ...] = ()
    began_at: Moment = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFile:
    """What stands in `ends/RANK.json`: how it has ended."""

    schema: int = 1
    node: NodeName = "-"
    attempt: Attempt
    state: JobState
    exit_code: ExitCode | None
    at: Moment = 0.0


AGENT = re.compile(r"(?P<rank>[0-9]{1,5})\.json")
RESULT = re.compile(r"node-(?P<rank>[0-9]{1,5})-attempt-(?P<attempt>[0-9]{1,7})\.json")
ROUNDS = re.compile(r"rounds-(?P<attempt>[0-9]{1,7})\.jsonl")
FAILURE = re.compile(r"(?P<attempt>[0-9]{1,7})\.json")

T = TypeVar("T")


def parsed(kind: type[T], data: bytes) -> T | None:
    """Return the record that a small file holds; None where it holds none."""
    return record_of(kind, files.parse_json(data))


def document_of(record: Any) -> bytes:
    """Return a record as a file holds it."""
    return files.json_text(record).encode()
