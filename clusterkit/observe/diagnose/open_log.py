"""Open a log as text: rotated ones are decompressed as they are read, and what is no log is told.

What a file is, its first bytes tell and not its name. Offsets are those of the text, so that only
in a plain file can one go to them.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit.core.reading import open_regular

_HEAD = 1 << 16
"""Bytes of a file's beginning that tell what it is."""
_PIECE = 1 << 20
_COMPRESSED: tuple[tuple[re.Pattern[bytes], str, Callable[[Any], Any]], ...] = (
    (re.compile(rb"\x1f\x8b\x08"), "gzip", lambda file: gzip.GzipFile(fileobj=file, mode="rb")),
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), "bzip2", bz2.BZ2File),
    (re.compile(rb"\xfd7zXZ\x00"), "xz", lzma.LZMAFile),
)
_OTHERS = (
    (0, b"PK\x03\x04", "a zip archive", "unzip -p FILE"),
    (0, b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc FILE"),
    (0, b"\x04\x22\x4d\x18", "lz4", "lz4 -dc FILE"),
    (257, b"ustar", "a tar archive", "tar -xOf FILE"),
)
"""What the standard library of Python 3.11 does not read as a stream, by magic bytes at a place."""
_DAMAGED = (OSError, ValueError, zlib.error, lzma.LZMAError)
_HOLES = re.compile(rb"\x00{16,}")
"""What a write that was cut off leaves, or a log that was emptied while it was written to."""
_CONTROL = bytes({*range(0x20), 0x7F} - set(b"\a\b\t\n\v\f\r\x1b"))
_MOST_CONTROL = 0.03
"""Share of control characters: compressed and random data have 0.1, text of any encoding none."""
_WORDS = re.compile(rb"^[\t\x20-\x7e]{8,}\r?$", re.MULTILINE)
_FEWEST_WORDS = 0.02
"""Share of lines of mere text that makes a log of what is full of garbage."""
_WIDE = 0.3
_DENSE = 10
"""Bytes of text that stand in one of a compressed log, about: logs repeat themselves."""


class NotALogError(Exception):
    """There is nothing to be read as a log; the text says what the file is."""


class Log:
    """The text of a file, from its beginning on."""

    def __init__(self, source: Any, *, plain: bool) -> None:
        """Take a stream of bytes that has `read1`, and `seek` where it is a plain file."""
        self.plain = plain
        """Whether an offset of the text is one of the file."""
        self.damage: str | None = None
        """Why the text ends before its end, known once that is read."""
        self._source = source
        self._decoder: codecs.IncrementalDecoder | None = None
        self._ahead = b""

    def head(self) -> bytes:
        """Return what it begins with, which is still to be read."""
        self._ahead = self._ahead or self._more(_HEAD)
        return self._ahead

    def narrow(self, encoding: str) -> None:
        """Read it as UTF-8 that stands in this encoding; only the head has been looked at."""
        self.plain = False
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._ahead = self._decoded(self._ahead).removeprefix(codecs.BOM_UTF8)

    def skip(self, size: int) -> None:
        """Leave out so many bytes."""
        if self.plain:
            self._source.seek(size - len(self._ahead), os.SEEK_CUR)
            self._ahead = b""
            return
        while size > 0 and (piece := self.read(min(size, _PIECE))):
            size -= len(piece)

    def read(self, size: int) -> bytes:
        """Return up to so many bytes; none at the end."""
        if (missing := size - len(self._ahead)) > 0:
            self._ahead += self._more(max(missing, _HEAD))
        piece, self._ahead = self._ahead[:size], self._ahead[size:]
        return piece

    def _more(self, size: int) -> bytes:
        pieces, missing = [], size
        while missing > 0 and self.damage is None:
            try:
                # Not read(): where the file is torn, that loses what stands before the end.
                raw = self._source.read1(missing)
            except EOFError:
                self.damage = "cut off"
            except _DAMAGED as error:
                self.damage = f"damaged ({error})"
            else:
                if not raw:
                    break
                missing -= len(raw)
                pieces.append(raw)
        return self._decoded(b"".join(pieces))

    def _decoded(self, raw: bytes) -> bytes:
        if self._decoder is None:
            return raw
        return self._decoder.decode(raw).encode("utf-8", errors="replace")


@contextmanager
def open_log(path: Path) -> Iterator[Log]:
    """Open a file as the text that it holds.

    Raises:
        NotALogError: it is empty or binary, or nothing of it can be read.
        OSError: it cannot be opened.
    """
    with ExitStack() as stack:
        file = stack.enter_context(os.fdopen(open_regular(path), "rb"))
        log = Log(file, plain=True)
        head, kind = log.head(), ""
        for magic, name, opened in _COMPRESSED:
            if magic.match(head):
                file.seek(0)
                log = Log(stack.enter_context(opened(file)), plain=False)
                head, kind = log.head(), f"{name}, "
                break
        if not head:
            raise NotALogError(f"{kind}{log.damage or 'empty'}")
        if (encoding := _wide(head)) is not None:
            log.narrow(encoding)
        if (why := _no_text(log.head())) is not None:
            raise NotALogError(f"{kind}{why}")
        yield log


def text_size(path: Path) -> int:
    """Return about how many bytes of text a file holds; 0 where it cannot be read."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size, head = os.fstat(file.fileno()).st_size, file.read(16)
    except OSError:
        return 0
    return size * (_DENSE if any(magic.match(head) for magic, *_ in _COMPRESSED) else 1)


def _wide(head: bytes) -> str | None:
    """Return the encoding of UTF-16, in which Windows writes: of text every other byte is none."""
    even, odd = (head[first::2].count(0) * 2 / len(head) for first in (0, 1))
    if odd > _WIDE and even < _WIDE / 10:
        return "utf-16-le"
    return "utf-16-be" if even > _WIDE and odd < _WIDE / 10 else None


def _no_text(head: bytes) -> str | None:
    """Return what a file is instead of text; None where it may be a log."""
    for at, magic, what, command in _OTHERS:
        if head.startswith(magic, at):
            return f"{what}, not a log: {command} | clusterkit diagnose -"
    text = _HOLES.sub(b"", head)
    controls = len(text) - len(text.translate(None, _CONTROL))
    words = sum(map(len, _WORDS.findall(text)))
    if controls <= _MOST_CONTROL * len(text) or words >= _FEWEST_WORDS * len(text):
        return None
    return "binary, not a log (if there is text in it: strings FILE | clusterkit diagnose -)"


WINDOW = 1 << 15
"""Bytes before and after a find within which all that is asked of its surroundings stands."""
_MOST = 1 << 25
"""Bytes that are kept of one log; around what comes later nothing is known."""


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
