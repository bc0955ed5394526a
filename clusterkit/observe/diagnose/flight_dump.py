"""Read the dumps of PyTorch's flight recorder, without torch, and without running what they say.

A dump is a pickle that a process of a job wrote, or the same as JSON. Of pickle's operations only
those are known here that build plain values: whatever names or calls something is refused, as is
what would fill the memory. `torch/csrc/distributed/c10d/FlightRecorder.hpp` has the format.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from clusterkit.core import reading
from clusterkit.core.records import count_of, object_of, text_of, texts_of
from clusterkit.observe.diagnose.evidence import LIBRARY

LARGEST = 16 << 20
"""Bytes of one dump; the 2,000 entries that PyTorch keeps take about one MiB."""
_MOST_MADE = 1 << 20
"""Values of one dump, each a hundred bytes in memory; texts that stand there again are none."""
_NEAR = 16
"""Calls that are kept around the first that has not ended, and of the last."""
_MOST_GROUPS = 1024
_MOST_SHOWN = 3
_LONGEST_PLACE = 120
_FORMAT = "2."
_HEAD = re.compile(
    rb"(?:\x80[\x02-\x05].{0,32}|\{ ?)(?:\"|X.\0\0\0|\x8c.)"
    rb"(?:version|entries|pg_config|comm_lib_version|nccl_version|nccl_comm_state)",
    re.DOTALL,
)


class NotADumpError(Exception):
    """The text says what a file is instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective that a rank has called."""

    name: str
    """Such as `all_reduce`."""
    backend: str
    sizes: tuple[int, int]
    """Elements that go in, and that come out."""
    types: tuple[str, ...]
    shape: str
    """Shape and type of what goes in, in words."""
    place: str
    """The innermost line of the script, `FILE:LINE`; empty where the dump has none."""
    created: float
    """Seconds since the epoch."""
    timeout_s: float
    done: bool


@dataclass(slots=True)
class Group:
    """What a rank has called in a process group."""

    name: str
    ranks: tuple[int, ...]
    """All that are in it; none where the dump does not tell."""
    calls: dict[int, Call]
    """By number, the latest last; those of long ago are not kept."""
    last: int = 0
    paired: bool = False
    """Whether it also sends from rank to rank: then numbers differ between ranks that are well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """What the recorder of one rank had at one moment."""

    rank: int
    taken: float
    """Seconds since the epoch, by the clock of the file system."""
    groups: Mapping[str, Group]
    whole: bool
    """Whether it goes back to the first call."""


def looks_like_dump(path: Path) -> bool:
    """Tell whether a file begins as the pickle, or the JSON, of a flight recorder."""
    try:
        with os.fdopen(reading.open_regular(path), "rb") as file:
            return _HEAD.match(file.read(64)) is not None
    except OSError:
        return False


def read_dump(path: Path, rank: int) -> Dump:
    """Return what the recorder of a rank has written.

    Raises:
        NotADumpError: it is none that can be read.
    """
    try:
        data = reading.read_bytes(path, most=LARGEST)
        taken = path.stat().st_mtime
    except OSError as error:
        raise NotADumpError(f"it cannot be read: {error.strerror}") from error
    document = _document(data)
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list):
        raise NotADumpError("no dump of a flight recorder")
    version = text_of(document, "version") or ""
    if not version.startswith(_FORMAT):
        raise NotADumpError(f"of format {version[:20] or '?'}, and {_FORMAT}x is known")
    entries = [entry for entry in document["entries"] if isinstance(entry, dict)]
    return Dump(
        rank=rank,
        taken=taken,
        groups=_groups(document, entries),
        whole=not entries or count_of(entries[0], "record_id") == 0,
    )


def _document(data: bytes) -> Any:
    if not data:
        raise NotADumpError("empty")
    if data.startswith(b"\x80"):
        return _Pickle(data).read()
    if sum(map(data.count, (b"[", b"{", b","))) > _MOST_MADE:
        raise NotADumpError("JSON of too many parts")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotADumpError("neither a pickle nor JSON") from error


def _groups(document: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    called: dict[str, dict[int, Mapping[str, Any]]] = {}
    known, status = object_of(document, "pg_config"), object_of(document, "pg_status")
    for entry in entries:
        name, words = _group_of(entry)
        group = groups.get(name)
        if group is None:
            if len(groups) >= _MOST_GROUPS:
                continue
            ranks = _ranks(object_of(known, name))
            group = groups[name] = Group(words, ranks, {}, _enqueued(status, entry))
        if entry.get("is_p2p") is True:
            group.paired = True
            continue
        number, of_group = count_of(entry, "collective_seq_id"), called.setdefault(name, {})
        if number not in of_group:
            of_group[number] = entry
            group.paired |= _name(entry)[1] == "coalesced"
        group.last = max(group.last, number)
    for name, of_group in called.items():
        groups[name].calls = {number: _call(of_group[number]) for number in _near(of_group)}
    return groups


def _near(calls: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Return which calls may be of interest: a job of thousands of ranks has many more."""
    opened = min((number for number, call in calls.items() if not _done(call)), default=0)
    last = sorted(calls)[-_NEAR:]
    return [number for number in calls if abs(number - opened) <= _NEAR or number in last]


def _group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of a group, and what to call it."""
    found = entry.get("process_group")
    name, words = (*(found if isinstance(found, tuple | list) else ()), "", "")[:2]
    name = name if isinstance(name, str) else ""
    words = words if isinstance(words, str) and words != "undefined" else ""
    return name, _short(words or name or "?")


def _enqueued(status: Mapping[str, Any], entry: Mapping[str, Any]) -> int:
    """Return the number of the last call, which may have been overwritten."""
    told = object_of(status, str(count_of(entry, "pg_id"))).get("last_enqueued_collective")
    number = int(told) if isinstance(told, str) and told.isascii() and told[:9].isdigit() else told
    return count_of({"": number}, "")


def _ranks(config: Mapping[str, Any]) -> tuple[int, ...]:
    words = (text_of(config, "ranks") or "").strip("[]").split(",")
    numbers = [word.strip() for word in words]
    known = all(word.isascii() and word.isdigit() and len(word) < 8 for word in numbers)
    return tuple(sorted({int(word) for word in numbers})) if known else ()


def _name(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the backend of a call, and its name."""
    backend, _, name = (text_of(entry, "profiling_name") or "?").rpartition(":")
    return backend, name


def _done(entry: Mapping[str, Any]) -> bool:
    return entry.get("state") == "completed"


def _call(entry: Mapping[str, Any]) -> Call:
    backend, name = _name(entry)
    shapes, types = _shapes(entry, "input_sizes"), texts_of(entry, "input_dtypes")
    shown = " ".join((*(str(list(one)) for one in shapes[:_MOST_SHOWN]), *sorted({*types[:1]})))
    return Call(
        name=_short(name),
        backend=backend,
        sizes=(_elements(shapes), _elements(_shapes(entry, "output_sizes"))),
        types=tuple(sorted(set(types))),
        shape=_short(shown + ("" if len(shapes) <= _MOST_SHOWN else " ...")),
        place=_place(entry),
        created=_number(entry, "time_created_ns") / 1e9,
        timeout_s=_number(entry, "timeout_ms") / 1e3,
        done=_done(entry),
    )


def _shapes(entry: Mapping[str, Any], key: str) -> tuple[tuple[int, ...], ...]:
    found = entry.get(key)
    shapes = found if isinstance(found, list) else []
    return tuple(tuple(one) for one in shapes if isinstance(one, list) and all(map(_counts, one)))


def _counts(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _elements(shapes: Sequence[Sequence[int]]) -> int:
    return sum(map(prod, shapes))


def _number(entry: Mapping[str, Any], key: str) -> int:
    value: Any = entry.get(key)
    return value if _counts(value) else 0


def _place(entry: Mapping[str, Any]) -> str:
    frames = entry.get("frames")
    for frame in frames if isinstance(frames, list) else ():
        file = text_of(frame, "filename") if isinstance(frame, dict) else None
        if file and not LIBRARY.search(file):
            return f"{_short(file[-_LONGEST_PLACE:])}:{count_of(frame, 'line')}"
    return ""


def _short(text: str) -> str:
    return " ".join(text[:_LONGEST_PLACE].replace(";", ",").split())


class _Pickle:
    """A pickle of plain values, one operation after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        """What is under each mark."""
        self.memo: dict[int, Any] = {}
        self._made = 0

    def read(self) -> Any:
        """Return what the pickle holds.

        Raises:
            NotADumpError: it is damaged, or holds more than plain values.
        """
        try:
            while (code := self._data[self._at]) != _STOP:
                self._at += 1
                if code == _BINGET:  # most of a dump: it repeats its texts and its frames
                    self._stack.append(self.memo[self._data[self._at]])
                    self._at += 1
                elif (operation := _OPERATIONS.get(code)) is not None:
                    operation(self)
                else:
                    raise NotADumpError(
                        "a pickle of more than plain values, which could run code: not opened"
                    )
            return self._stack.pop()
        except (IndexError, KeyError, struct.error) as error:
            raise NotADumpError("a pickle that is cut off or damaged") from error
        except (TypeError, UnicodeDecodeError) as error:
            raise NotADumpError("a pickle that makes no sense") from error

    def unpack(self, kind: struct.Struct) -> int:
        (value,) = kind.unpack_from(self._data, self._at)
        self._at += kind.size
        return value  # type: ignore[no-any-return]

    def bytes(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        self._at += size
        if len(found) < size:
            raise IndexError
        return found

    def count(self) -> None:
        self._made += 1
        if self._made > _MOST_MADE:
            raise NotADumpError("a pickle of too many parts")

    def push(self, value: Any) -> None:
        self.count()
        self._stack.append(value)

    def mark(self) -> None:
        self.count()
        self._below.append(self._stack)
        self._stack = []

    def to_mark(self) -> list[Any]:
        found, self._stack = self._stack, self._below.pop()
        return found

    def extend(self, values: list[Any]) -> None:
        self.count()
        if type(self._stack[-1]) is not list:
            raise TypeError
        self._stack[-1] += values

    def set(self, pairs: list[Any]) -> None:
        self.count()
        keys = pairs[::2]
        if len(pairs) % 2 or any(type(key) is not str for key in keys):
            raise TypeError
        if type(self._stack[-1]) is not dict:
            raise TypeError
        self._stack[-1].update(zip(keys, pairs[1::2], strict=True))

    def keep(self, index: int) -> None:
        self.count()
        self.memo[index] = self._stack[-1]

    def skip(self, size: int) -> None:
        self._at += size

    def last(self, count: int) -> list[Any]:
        taken = self._stack[-count:]
        if len(taken) < count:
            raise IndexError
        del self._stack[-count:]
        return taken


_U1, _U2, _U4, _S4 = (struct.Struct(kind) for kind in ("<B", "<H", "<I", "<i"))
_F8 = struct.Struct(">d")
_STOP, _BINGET = 0x2E, 0x68
_OPERATIONS: Mapping[int, Callable[[_Pickle], None]] = {
    ord("j"): lambda p: p.push(p.memo[p.unpack(_U4)]),
    ord("q"): lambda p: p.keep(p.unpack(_U1)),
    ord("r"): lambda p: p.keep(p.unpack(_U4)),
    0x94: lambda p: p.keep(len(p.memo)),
    ord("X"): lambda p: p.push(p.bytes(p.unpack(_U4)).decode()),
    0x8C: lambda p: p.push(p.bytes(p.unpack(_U1)).decode()),
    ord("K"): lambda p: p.push(p.unpack(_U1)),
    ord("M"): lambda p: p.push(p.unpack(_U2)),
    ord("J"): lambda p: p.push(p.unpack(_S4)),
    0x8A: lambda p: p.push(int.from_bytes(p.bytes(p.unpack(_U1)), "little", signed=True)),
    ord("G"): lambda p: p.push(p.unpack(_F8)),
    ord("N"): lambda p: p.push(None),
    0x88: lambda p: p.push(True),
    0x89: lambda p: p.push(False),
    ord("]"): lambda p: p.push([]),
    ord("}"): lambda p: p.push({}),
    ord(")"): lambda p: p.push(()),
    ord("("): _Pickle.mark,
    ord("a"): lambda p: p.extend(p.last(1)),
    ord("e"): lambda p: p.extend(p.to_mark()),
    ord("s"): lambda p: p.set(p.last(2)),
    ord("u"): lambda p: p.set(p.to_mark()),
    ord("t"): lambda p: p.push(tuple(p.to_mark())),
    0x85: lambda p: p.push(tuple(p.last(1))),
    0x86: lambda p: p.push(tuple(p.last(2))),
    0x87: lambda p: p.push(tuple(p.last(3))),
    0x80: lambda p: p.skip(1),
    0x95: lambda p: p.skip(8),
}
"""What the pickler of torch writes (protocol 2), and that of Python (up to 5) of the same values.

A key is a text, so that nothing that is nested is hashed.
"""
