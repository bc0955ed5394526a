"""Keep what stands around the finds of a log in which one cannot go to an offset again."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core.reading import open_regular
from clusterkit.observe.diagnose.open_log import NotALogError, open_log

WINDOW = 1 << 15
"""Bytes before and after a find within which all that is asked of its surroundings stands."""
_MOST = 1 << 25
"""Bytes that are kept of one log; around what comes later nothing is known."""
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Excerpts:
    """Parts of a text, each with how many bytes stand before it; none touches another."""

    parts: tuple[tuple[int, bytes], ...]

    def read(self, start: int, size: int) -> bytes:
        """Return what is known of so many bytes from `start` on, as far as nothing is missing."""
        for offset, text in self.parts:
            if offset <= start < offset + len(text):
                return text[start - offset : start - offset + size]
        return b""


def excerpts_around(path: Path, offsets: Iterable[int]) -> Excerpts:
    """Read a log once more, up to the last of these offsets, and keep what is around each."""
    spans: list[tuple[int, int]] = []
    size = 0
    for begin, end in sorted((max(0, offset - WINDOW), offset + WINDOW) for offset in offsets):
        joins = bool(spans) and begin <= spans[-1][1]
        size += end - (spans[-1][1] if joins else begin)
        if size > _MOST:
            break
        if joins:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((begin, end))
    parts, at = [], 0
    try:
        with open_log(path) as log:
            for begin, end in spans:
                log.skip(begin - at)
                pieces = []
                at = begin
                while at < end and (piece := log.read(min(end - at, _PIECE))):
                    pieces.append(piece)
                    at += len(piece)
                parts.append((begin, b"".join(pieces)))
    except (NotALogError, OSError):  # it has gone since
        pass
    return Excerpts(tuple(parts))


def read_part(path: Path, excerpts: Excerpts | None, start: int, size: int) -> bytes:
    """Return so many bytes of a log's text from `start` on; nothing where it cannot be read."""
    if excerpts is not None:
        return excerpts.read(start, size)
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            stream.seek(start)
            return stream.read(size)
    except OSError:
        return b""
