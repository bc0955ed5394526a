"""The only writer: atomic, explained where it fails, and private from the first byte on.

A reader on another node never sees half a file: everything but an append is written beside its
target and then given its name. What the disk refuses becomes a `UserError` that names the path.

What may be read by whom, `clusterkit.core.permissions` decides: None is for whom the folder is.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

from clusterkit.core import permissions, reading
from clusterkit.core.data import read_table
from clusterkit.core.errors import UserError
from clusterkit.core.permissions import PRIVATE, PRIVATE_PROGRAM, PUBLIC, PUBLIC_PROGRAM, output

__all__ = ["PRIVATE", "PRIVATE_PROGRAM", "PUBLIC", "PUBLIC_PROGRAM", "output"]

_FICLONE = 0x40049409
"""Of <linux/fs.h>."""
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS})
"""What file systems without hard links answer (SMB, some in user space)."""

_BLOCK = 4096
"""What a file takes at least, on most file systems; bytes."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})

_HINTS = {
    getattr(errno, row["error"]): row["hint"] for row in read_table(__file__, "file_errors.tsv")
}


@contextmanager
def explained(path: Path, action: str = "write") -> Iterator[None]:
    """Turn an `OSError` inside the block into a `UserError` that names `path`."""
    try:
        yield
    except OSError as error:
        hint = _HINTS.get(error.errno or 0)
        raise UserError(f"cannot {action} {path}: {error.strerror or error}", hint=hint) from error


def write_text(path: Path, text: str, *, mode: int | None = None) -> None:
    """Replace `path` by a file that holds `text`, at once and with these permissions."""
    write_bytes(path, text.encode(), mode=mode)


def write_bytes(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Replace `path` by a file that holds `data`, at once and with these permissions."""
    with explained(path), _written_beside(path, data, mode) as written:
        written.replace(path)


def require_place(path: Path) -> None:
    """Check that `write_text` will be able to write `path`.

    Raises:
        UserError: something else than a file is there, or its folder takes no file.
    """
    with explained(path):
        if path.exists() and not path.is_file():
            raise UserError(f"cannot write {path}: it is not a regular file")
        with _written_beside(path, b"", PRIVATE):
            pass


def refuses_data(folder: Path) -> str | None:
    """Return why a folder takes no new file of ours, as far as its file system says it unasked.

    Nothing is written; of a quota only file servers tell.
    """
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        return error.strerror
    free = disk.f_bavail if os.geteuid() else disk.f_bfree  # some are kept for root
    no_blocks = disk.f_blocks and free * disk.f_frsize < _BLOCK
    no_names = disk.f_files and not disk.f_favail
    if disk.f_flag & os.ST_RDONLY:
        code = errno.EROFS
    elif not os.access(folder, os.W_OK | os.X_OK):
        code = errno.EACCES
    elif no_blocks or no_names:
        code = errno.ENOSPC
    else:
        return None
    return os.strerror(code)


def why_no_room(error: UserError) -> str | None:
    """Return what the system says where `error` is of a disk that takes no more; else None."""
    cause = error.__cause__
    if not isinstance(cause, OSError) or cause.errno not in _NO_ROOM:
        return None
    return os.strerror(cause.errno)


def write_new(path: Path, text: str) -> None:
    """Write `text` to `path`, which nobody may be reading yet: not at once, nor safe on the disk.

    For thousands of files that count only once another one is there; a wait for the disk at each
    of them would take minutes.
    """
    with explained(path):
        descriptor = permissions.open_new(path, None)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)


def write_json(path: Path, document: Mapping[str, Any], *, mode: int | None = None) -> None:
    """Replace `path` by `document` as indented JSON; bytes that are no UTF-8 stand as escapes."""
    write_bytes(path, json_text(document).encode(errors="backslashreplace"), mode=mode)


def json_text(document: Any) -> str:
    """Return a document as our files hold it: indented JSON."""
    return json.dumps(plain(document), indent=2, ensure_ascii=False) + "\n"


def create_text(path: Path, text: str) -> bool:
    """Create `path` with `text`, and tell whether it was this call that created it.

    Exactly one of any number of callers, on any number of nodes, gets True.
    """
    beside = _written_beside(path, text.encode(), None)
    with explained(path), beside as written, suppress(FileExistsError):
        try:
            path.hardlink_to(written)  # unlike a rename, a link replaces nothing
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.close(permissions.open_new(path, None))
            written.replace(path)
        return True
    return False


def create_link(path: Path, target: str) -> None:
    """Create the symbolic link `path`, unless something of that name is there."""
    with explained(path), suppress(FileExistsError):
        path.symlink_to(target)


def open_for_append(path: Path) -> int:
    """Return a descriptor whose writes go to the end of `path`; the caller closes it.

    A link is not followed: it would lead to any other file of the user.
    """
    with explained(path):
        return permissions.open_or_make(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, None)


def copy(source: Path, path: Path) -> None:
    """Make `path` what `source` is, with its permissions: a file, or a link as it is."""
    with explained(path, "copy to"):
        permissions.make_folders(path.parent, permissions.PRIVATE_FOLDER)
        if not _cloned(source, path):
            shutil.copy2(source, path, follow_symlinks=False)


def _cloned(source: Path, path: Path) -> bool:
    """Make a new file `path` of the blocks of a file, where the file system can: a copy on write.

    ioctl_ficlone(2): Btrfs, XFS, bcachefs, OCFS2, and NFS 4.2 over one of them.
    """
    if source.is_symlink():
        return False
    with suppress(OSError), source.open("rb") as old, path.open("xb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError:
            path.unlink()
            return False
        shutil.copystat(source, path)
        return True
    return False


def give_name(written: Path, path: Path, *, mode: int | None = None) -> None:
    """Put a whole file in the place of `path`, at once and with these permissions."""
    with explained(path):
        written.chmod(permissions.exact(path, mode))
        written.replace(path)


def move(source: Path, path: Path) -> bool:
    """Give a file or folder another name, which nothing may have; False on another file system."""
    with explained(path):
        try:
            source.rename(path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return False
    return True


def append_line(path: Path, line: str, *, mode: int | None = None) -> None:
    """Add a line to the end of `path`, on a line of its own, while nobody else of us does."""
    with explained(path):
        descriptor = permissions.open_or_make(path, os.O_RDWR | os.O_APPEND, mode)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            broken = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, (("\n" if broken else "") + line + "\n").encode())
        finally:
            os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock file `path`, and tell whether this could be had: never waits.

    It is free again when its holder ends, however that ends.
    """
    with explained(path):
        descriptor = permissions.open_or_make(path, os.O_RDWR, PRIVATE)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EACCES, errno.EAGAIN}:
                raise UserError(f"cannot lock {path}: {error.strerror}") from error
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def create_folder(path: Path, *, mode: int = permissions.PRIVATE_FOLDER) -> bool:
    """Create `path` and its parents with these permissions; tell whether `path` itself is new.

    What is there already keeps its own.

    Raises:
        UserError: it cannot be created.
    """
    with explained(path, "create"):
        permissions.make_folders(path.parent, mode)
        try:
            permissions.make_folder(path, mode)
        except FileExistsError:
            if not path.is_dir():
                raise
            return False
    return True


def create_output_folder(path: Path) -> None:
    """Create a folder that the user asked for by name, and its parents, as far as his umask lets.

    Raises:
        UserError: it cannot be created.
    """
    with explained(path, "create"):
        permissions.make_folders(path, output(PUBLIC_PROGRAM))


def touch(path: Path) -> None:
    """Give `path`, which is made where it is missing, the present as its time."""
    with explained(path):
        os.close(permissions.open_or_make(path, os.O_WRONLY | os.O_NOFOLLOW, None))
        os.utime(path)


def age_s(path: Path) -> float:
    """Return how many seconds ago `path` was written, whatever the clocks of machines say.

    Both times are those of its file system: a file server's, where there is one.
    """
    with explained(path, "read"):
        descriptor = os.open(path, os.O_RDONLY)  # a mere stat may come from a client's cache
        try:
            then = os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
    with explained(path):
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            return os.fstat(descriptor).st_mtime - then
        finally:
            os.close(descriptor)
            Path(name).unlink()


def remove(path: Path) -> None:
    """Remove the file `path`, if there is one."""
    with explained(path, "remove"):
        path.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a folder of ours with everything in it, as far as that can be done."""
    shutil.rmtree(path, ignore_errors=True)


def read_json(path: Path, *, own: bool = False) -> dict[str, Any] | None:
    """Return the JSON object in the regular file `path`; None where there is no such object.

    Neither the file nor its folder may be a link; `own` takes no file of somebody else
    (`core/reading.py`).
    """
    try:
        return parse_json(reading.read_bytes(path, own=own))
    except (OSError, ValueError):  # the latter: a name with a NUL in it
        return None


def parse_json(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object in `data`; None where there is none."""
    try:
        document = json.loads(data.decode(json.detect_encoding(data)))
        if _SURROGATE.search(data):  # no encoding can write half of a pair
            text = json.dumps(document, ensure_ascii=False)
            document = json.loads(text.encode("utf-8", errors="replace"))
    except (ValueError, RecursionError):  # the latter: brackets in brackets, thousands of them
        return None
    return document if isinstance(document, dict) else None


def count(folder: Path) -> int:
    """Return how many JSON files are in `folder`; none where it cannot be read."""
    return sum(1 for name in reading.names_in(folder) if name.endswith(".json"))


@contextmanager
def _written_beside(path: Path, data: bytes, mode: int | None) -> Iterator[Path]:
    """Give the name of a new file beside `path` that holds `data`, safe on the disk.

    It is gone afterwards, unless it was given another name.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        # mkstemp creates with 0600; whoever sees the final name sees the final permissions too.
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(descriptor, permissions.exact(path, mode))
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        yield Path(name)
    finally:
        with suppress(OSError):
            os.unlink(name)  # noqa: PTH108 - for each file that is written


DOCUMENT_SCHEMA = 1
"""Of the documents that `--json` prints."""


def versioned(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document as `--json` prints it: what JSON knows, its schema number first."""
    return {"schema": DOCUMENT_SCHEMA, **plain(document)}


def plain(value: Any) -> Any:
    """Return `value` as what JSON knows: dataclasses as objects, enums as their values."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return str(value)
