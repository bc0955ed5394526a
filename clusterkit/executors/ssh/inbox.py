"""Write below a run folder what nodes have sent: never through a link, never beside it.

Each part of a path is opened below the one before (openat(2) with O_NOFOLLOW), so that nobody can
turn a name aside between a look and a write. A name that cannot be written as it is (a file where a
folder has to be) is the fault of the node that chose it.

What nodes answer when they are asked for the files of a job, piece by piece, has a type and bounds
in every field, and what has others is nonsense of that one node. A node speaks for itself: of
another one it can only say that it has gone, which is a claim and no result.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from clusterkit.core import files, permissions
from clusterkit.core.bounds import Within
from clusterkit.core.errors import RemoteError
from clusterkit.core.records import record_of
from clusterkit.transport.ssh.session import Nonsense
from clusterkit.transport.sync.helper import Helper

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Never waits for who reads a pipe."""
_LINKS = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.ENOTEMPTY})
"""What a link, a file for a folder, a folder for a file and a pipe without a reader answer."""
_NAMES = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ})
"""What a file system answers to names that it does not take."""
_MOST_PARTS, _LONGEST_PART, _LONGEST = 32, 255, 1024
"""Folders in folders, bytes of a name (NAME_MAX on Linux), and of a whole path."""


class NotWritten(RemoteError):  # noqa: N818 - a state of the run folder, not a mistake of anyone
    """What a node has sent cannot be written here as it is."""


def relative(name: str, *, node: str) -> PurePosixPath:
    """Return a name that a node sent as a path below a folder.

    Raises:
        Nonsense: it leads elsewhere, or a terminal or a file system would choke on it.
    """
    path = PurePosixPath(name)
    parts = path.parts
    good = parts and not path.is_absolute() and ".." not in parts and len(parts) <= _MOST_PARTS
    # Bytes that are no text are no control characters.
    printable = all(char.isprintable() or "\udc80" <= char <= "\udcff" for char in name)
    try:
        length = len(os.fsencode(name))
        good = good and max(len(os.fsencode(part)) for part in parts) <= _LONGEST_PART
    except UnicodeEncodeError:  # it is not what `os.fsdecode` makes of some bytes
        good = False
    if not good or length > _LONGEST or not printable:
        raise Nonsense(f"a file of the name {name[:80]!r}", node=node)
    return path


class Inbox:
    """The run folder, for what one node has sent."""

    def __init__(self, root: Path, node: str) -> None:
        """Write below `root`; what cannot be written is told of `node`."""
        self.root = root
        self.node = node

    def size(self, name: PurePosixPath) -> int:
        """Return how many bytes a file of ours holds; 0 where it is missing.

        Raises:
            NotWritten: it is no plain file.
        """
        with self._above(name) as (folder, last), suppress(FileNotFoundError):
            return self._plain(os.stat(last, dir_fd=folder, follow_symlinks=False), name).st_size
        return 0

    def write_at(self, name: PurePosixPath, offset: int, data: bytes) -> None:
        """Write bytes into a file, which ends at `offset` or later: nothing is left out.

        Raises:
            NotWritten: it is no plain file, or ends before.
            UserError: the disk takes no more.
        """
        with self._above(name) as (folder, last):
            descriptor = os.open(last, _FILE | os.O_CREAT, files.PRIVATE, dir_fd=folder)
            try:
                if self._plain(os.fstat(descriptor), name).st_size < offset:
                    raise self._refused(name, f"it ends before byte {offset}")
                if offset == 0:
                    os.fchmod(descriptor, permissions.in_folder(os.fstat(folder)))
                rest = memoryview(data)
                while rest:
                    written = os.pwrite(descriptor, rest, offset)
                    rest, offset = rest[written:], offset + written
            finally:
                os.close(descriptor)

    def replace(self, name: PurePosixPath, data: bytes) -> None:
        """Put a file that holds `data` in the place of another, at once.

        Raises:
            NotWritten: something else than a file is there.
            UserError: the disk takes no more.
        """
        part = PurePosixPath(f".{self.node}.ck-part")
        self.remove(part)
        self.write_at(part, 0, data)
        self.give_name(part, name, executable=False)

    def give_name(self, part: PurePosixPath, name: PurePosixPath, *, executable: bool) -> None:
        """Give a whole file its name, in the place of another.

        Raises:
            NotWritten: something else than a file is there.
            UserError: the disk takes no more.
        """
        with self._above(part) as (source, first), self._above(name) as (target, last):
            with suppress(FileNotFoundError):
                self._plain(os.stat(last, dir_fd=target, follow_symlinks=False), name)
            mode = permissions.in_folder(os.fstat(target)) | (stat.S_IXUSR if executable else 0)
            os.chmod(first, mode, dir_fd=source)
            os.rename(first, last, src_dir_fd=source, dst_dir_fd=target)

    def remove(self, name: PurePosixPath) -> None:
        """Remove a file, or a link and not what it points to."""
        with self._above(name) as (folder, last), suppress(FileNotFoundError):
            os.unlink(last, dir_fd=folder)

    @contextmanager
    def _above(self, name: PurePosixPath) -> Iterator[tuple[int, str]]:
        """Open the folder of a name, made where it is missing; with the last part of the name."""
        with self._explained(name):
            opened = [os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
            try:
                for part in name.parts[:-1]:
                    with suppress(FileExistsError):
                        os.mkdir(part, permissions.PRIVATE_FOLDER, dir_fd=opened[-1])
                        os.chmod(part, permissions.PRIVATE_FOLDER, dir_fd=opened[-1])
                    opened.append(os.open(part, _FOLDER, dir_fd=opened[-1]))
                yield opened[-1], name.parts[-1]
            finally:
                for descriptor in opened:
                    os.close(descriptor)

    @contextmanager
    def _explained(self, name: PurePosixPath) -> Iterator[None]:
        with files.explained(self.root / name):
            try:
                yield
            except OSError as error:
                if error.errno in _LINKS:
                    raise self._refused(name, "a link, or no plain file, is in its place") from None
                if error.errno in _NAMES:
                    raise self._refused(name, error.strerror) from None
                raise

    def _plain(self, status: os.stat_result, name: PurePosixPath) -> os.stat_result:
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise self._refused(name, "a link, or no plain file, is in its place")
        if status.st_uid != os.geteuid():
            raise self._refused(name, "what is there is not yours")
        return status

    def _refused(self, name: PurePosixPath, why: str | None) -> NotWritten:
        return NotWritten(
            f"{self.root / name} is not written: {why}",
            node=self.node,
            hint="move away what is there, and look again",
        )


MIB = 1 << 20
SMALL_MOST = MIB
"""Bytes of one small file; of a longer one, its end."""

Size = Annotated[int, Within(0, 1 << 45)]
Sign = tuple[Size, Annotated[int, Within(-(1 << 62), 1 << 62)]]
"""Bytes and time of the last change (ns), which tell a file from what it was before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """a piece of a file."""

    file: str
    offset: Size
    bytes: Annotated[int, Within(0, SMALL_MOST)]
    """How many follow."""
    last: bool
    mode: Annotated[int, Within(0, 0o7777)]
    sign: Sign


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """that this was all."""

    done: bool
    too_large: Size = 0
    """How large the results are, where that is too much."""
    left_out: Annotated[int, Within(0, 1 << 31)] = 0
    """How many results have names that nobody can print."""


def next_answer(helper: Helper) -> tuple[Piece | Done, bytes]:
    """Return the next answer of a node with the bytes behind it.

    Raises:
        Nonsense: it is none of those that a node of ours gives.
        RemoteError: the node could not do it, or its time is up.
    """
    document = helper.answer()
    kind: type[Piece | Done] = Piece if "file" in document else Done
    found = helper.record(kind, document)
    return found, helper.take(found.bytes) if isinstance(found, Piece) else b""


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


def reported_failure(teller: int, attempt: int) -> PurePosixPath:
    """Return where the first failure of an attempt stands as one node has it."""
    return PurePosixPath("failures", f"told-{teller}-{attempt}.json")


def reported_loss(teller: int, lost: int, attempt: int) -> PurePosixPath:
    """Return where it stands that a node says of another that it has gone."""
    return PurePosixPath("failures", f"told-{teller}-lost-{lost}-{attempt}.json")
