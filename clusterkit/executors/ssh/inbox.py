"""Write below a run folder what nodes have sent: never through a link, never beside it.

Each part of a path is opened below the one before (openat(2) with O_NOFOLLOW), so that nobody can
turn a name aside between a look and a write. A name that cannot be written as it is (a file where a
folder has to be) is the fault of the node that chose it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from clusterkit.core import files, permissions
from clusterkit.core.errors import RemoteError
from clusterkit.transport.ssh.session import Nonsense

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
    length = len(os.fsencode(name)) if _is_decoded(name) else _LONGEST + 1
    good = parts and not path.is_absolute() and ".." not in parts and len(parts) <= _MOST_PARTS
    if not good or length > _LONGEST or not _is_printable(name):
        raise Nonsense(f"a file of the name {name[:80]!r}", node=node)
    if max(len(os.fsencode(part)) for part in parts) > _LONGEST_PART:
        raise Nonsense(f"a file of the name {name[:80]!r}", node=node)
    return path


def _is_decoded(name: str) -> bool:
    """Tell whether a text is what `os.fsdecode` makes of some bytes."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def _is_printable(name: str) -> bool:
    """Tell whether a name holds no control characters; bytes that are no text are none."""
    return all(char.isprintable() or "\udc80" <= char <= "\udcff" for char in name)


class Inbox:
    """The run folder, for what one node has sent."""

    def __init__(self, root: Path, node: str) -> None:
        """Write below `root`; what cannot be written is told of `node`."""
        self.root = root
        self.node = node

    def size(self, name: PurePosixPath) -> int:
        """Return how many bytes a file of ours holds; 0 where it is not there.

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
        """Open the folder of a name, made where it is not there; with the last part of the name."""
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
