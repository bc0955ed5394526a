"""The only writer: atomic, explained where it fails, and private from the first byte on.

A reader on another node never sees half a file: everything but an append is written beside its
target and renamed over it. What the disk refuses becomes a `UserError` that names the path.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

from clusterkit.errors import UserError

PUBLIC = 0o644
PRIVATE = 0o600
EXECUTABLE = 0o755

_HINTS = {
    errno.ENOSPC: "the disk is full: free some space, or set `run_dir` to another disk",
    errno.EDQUOT: "your quota is used up: remove old runs, or set `run_dir` to another disk",
    errno.EROFS: "this file system is read-only: set `run_dir` to a folder that can be written",
    errno.EACCES: "you may not write there: set `run_dir` to a folder of your own",
    errno.EPERM: "you may not write there: set `run_dir` to a folder of your own",
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.EEXIST: "a file of that name is in the way: remove it, or set `run_dir` elsewhere",
    errno.ENAMETOOLONG: "choose a shorter name or `run_dir`",
    errno.EIO: "the disk or the network file system reports an error; try again, or ask its owner",
}


@contextmanager
def explained(path: Path, action: str = "write") -> Iterator[None]:
    """Turn an `OSError` inside the block into a `UserError` that names `path`."""
    try:
        yield
    except OSError as error:
        hint = _HINTS.get(error.errno or 0)
        raise UserError(f"cannot {action} {path}: {error.strerror or error}", hint=hint) from error


def write_text(path: Path, text: str, *, mode: int = PUBLIC) -> None:
    """Replace `path` by a file that holds `text`, at once and with these permissions."""
    with explained(path):
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            # mkstemp creates with 0600; widening comes first, so that a rename publishes the
            # final permissions together with the text.
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
                os.fchmod(descriptor, mode)
                stream.write(text)
                stream.flush()
                os.fsync(descriptor)
            Path(name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise


def write_json(path: Path, document: Mapping[str, Any], *, mode: int = PUBLIC) -> None:
    """Replace `path` by `document` as indented JSON."""
    write_text(path, json.dumps(plain(document), indent=2, ensure_ascii=False) + "\n", mode=mode)


def create_text(path: Path, text: str, *, mode: int = PUBLIC) -> bool:
    """Create `path` with `text`, and tell whether it was this call that created it.

    Exactly one of any number of callers, on any number of nodes, gets True.
    """
    try:
        with explained(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
                stream.write(text)
    except UserError as error:
        if isinstance(error.__cause__, FileExistsError):
            return False
        raise
    return True


def append_text(path: Path, text: str, *, mode: int = PUBLIC) -> None:
    """Add `text` at the end of `path`, creating it where there is none."""
    descriptor = open_for_append(path, mode=mode)
    with explained(path), os.fdopen(descriptor, "a", encoding="utf-8", newline="") as stream:
        stream.write(text)


def open_for_append(path: Path, *, mode: int = PUBLIC) -> int:
    """Return a descriptor whose writes go to the end of `path`; the caller closes it."""
    with explained(path):
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode)


def create_folder(path: Path, *, mode: int = 0o755, exist_ok: bool = True) -> bool:
    """Create `path` and its parents; tell whether `path` itself is new.

    Raises:
        UserError: it cannot be created, or is there already and `exist_ok` is False.
    """
    with explained(path, "create"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(mode=mode)
        except FileExistsError:
            if not exist_ok or not path.is_dir():
                raise
            return False
    return True


def remove(path: Path) -> None:
    """Remove the file `path`, if there is one."""
    with explained(path, "remove"):
        path.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a folder of ours with everything in it, as far as that can be done."""
    shutil.rmtree(path, ignore_errors=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`; None where there is no such file or no such object."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


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
