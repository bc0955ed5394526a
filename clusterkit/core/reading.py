"""Read files of a folder that anybody may have made: regular ones only, never through a link.

A pipe or a device in the place of a file would hold its reader for ever, a link would lead out of
the folder, and a file of 10 GiB would fill the memory. These functions take the last folder of a
path, and the file in it, only as what they are, and no more of it than the caller wants.
"""

from __future__ import annotations

import errno
import os
import stat
from itertools import islice
from pathlib import Path

from clusterkit.core.ownership import judge

LARGEST_DOCUMENT = 4 << 20
"""Bytes of one JSON file. Objects in memory take up to 30 times as much; a plan of 10,000 nodes
takes 1 MiB."""
MOST_NAMES = 100_000
"""Files of one folder that are looked at."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_regular(path: Path, *, own: bool = False) -> int:
    """Return a descriptor of the regular file `path`; the caller closes it.

    Args:
        path: Neither the file nor the folder that holds it may be a link.
        own: Take only what nobody but its user can have written (`core/ownership.py`).

    Raises:
        OSError: it is missing, is something else (`ELOOP`, `ENOTDIR`, `EINVAL`), or is somebody
            else's (`EPERM`).
    """
    folder = os.open(path.parent, _FOLDER)
    try:
        descriptor = os.open(path.name, _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    status = os.fstat(descriptor)
    refused = 0
    if not stat.S_ISREG(status.st_mode):
        refused = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
    elif own and judge(path, status) is not None:
        refused = errno.EPERM
    if refused:
        os.close(descriptor)
        raise OSError(refused, os.strerror(refused), str(path))
    return descriptor


def read_bytes(path: Path, *, most: int = LARGEST_DOCUMENT, own: bool = False) -> bytes:
    """Return what the regular file `path` holds.

    Raises:
        OSError: as `open_regular`, or it holds more than `most` bytes (`EFBIG`).
    """
    with os.fdopen(open_regular(path, own=own), "rb") as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data


def read_start(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of the regular file `path`; nothing where it cannot be read."""
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            return stream.read(most)
    except OSError:
        return b""


def read_end(path: Path, most: int) -> bytes:
    """Return the last `most` bytes of the regular file `path`; nothing where it cannot be read."""
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - most))
            return stream.read(most)
    except OSError:
        return b""


def size_of(path: Path) -> int:
    """Return how many bytes the regular file `path` holds; 0 where there is none."""
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def names_in(folder: Path) -> frozenset[str]:
    """Return the names in a folder, `MOST_NAMES` at most; none where it is a link, or not there."""
    try:
        descriptor = os.open(folder, _FOLDER)
    except (OSError, ValueError):
        return frozenset()
    try:
        with os.scandir(descriptor) as entries:
            return frozenset(entry.name for entry in islice(entries, MOST_NAMES))
    except OSError:
        return frozenset()
    finally:
        os.close(descriptor)
