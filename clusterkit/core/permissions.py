"""Who may read what we write: decided here, whatever the umask.

Folders are made for their owner alone (0700). A file can be read by whom its folder lets read, so
0600 in such a folder, and written by nobody but its owner. Code, pickles and secrets are `PRIVATE`
in any folder. What the user asked for by name, such as a page of HTML, obeys his umask, but for
writing by others.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

PRIVATE = 0o600
PRIVATE_PROGRAM = 0o700
PRIVATE_FOLDER = 0o700
PUBLIC = 0o644
PUBLIC_PROGRAM = 0o755
"""Of what goes into an image; elsewhere, `output` says what of it the user's umask leaves."""

_READ_BY_OTHERS = 0o044
_OF_OTHERS = 0o077
_ATTEMPTS = 3


def exact(path: Path, mode: int | None) -> int:
    """Return the permissions of a new file at `path`; None is: for whom its folder is.

    Raises:
        OSError: it has no folder.
    """
    if mode is None:
        return in_folder(path.parent.stat())
    return mode


def in_folder(folder: os.stat_result) -> int:
    """Return the permissions of a file in a folder of this status: for whom the folder is."""
    return PRIVATE | (folder.st_mode & _READ_BY_OTHERS)


def output(mode: int = PUBLIC) -> int:
    """Return what the user's umask leaves of the permissions of what he asked for by name."""
    return mode & ~_umask()


def open_new(path: Path, mode: int | None) -> int:
    """Create a file that was not there; return its descriptor, for reading and writing."""
    permissions = exact(path, mode)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
    os.fchmod(descriptor, permissions)
    return descriptor


def open_or_make(path: Path, flags: int, mode: int | None) -> int:
    """Open a file, which is made where it is missing; return its descriptor."""
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            return os.open(path, flags | os.O_CLOEXEC)
        with suppress(FileExistsError):  # another one was faster
            os.close(open_new(path, mode))
    # A link of the user's own whose target does not exist yet, such as a known_hosts elsewhere.
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, PRIVATE)


def make_folders(path: Path, mode: int) -> None:
    """Make those of `path` and the folders above it that are missing."""
    if not path.is_dir():
        make_folders(path.parent, mode)
        with suppress(FileExistsError):
            make_folder(path, mode)


def make_folder(path: Path, mode: int) -> None:
    """Make one folder, which must not be there, with exactly these permissions."""
    path.mkdir(mode=mode)
    got = stat.S_IMODE(path.lstat().st_mode)
    permissions = mode | (got & stat.S_ISGID)  # whose files belong to the group of the folder
    if got != permissions:
        path.chmod(permissions)


def close_output() -> None:
    """Take from others what the umask gave them of the files that a scheduler opened for us."""
    for descriptor in (1, 2):
        with suppress(OSError):
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & ~_OF_OTHERS)


def _umask() -> int:
    """Return what the user wants nobody else to have; asking by os.umask would change it."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8) & _OF_OTHERS
    except (OSError, ValueError, IndexError):
        pass  # no Linux
    return _OF_OTHERS
