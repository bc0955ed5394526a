"""The lab folder: its lock, its marker, its removal."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.lab.layout import LabError, Layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MARKER = "lab.json"
LOCK = "lock"
# Which test processes use the lab, and whether tests started it; see fixtures.py.
USERS = "users.json"
USERS_LOCK = "users.lock"


def read_layout(root: Path) -> Layout | None:
    """Return the layout that was started in a folder; None where there is none."""
    try:
        noted = json.loads((root / MARKER).read_text())
    except FileNotFoundError:
        return None
    return Layout(
        root=root,
        nodes=noted["nodes"],
        accounting=noted.get("accounting", False),
        cloud=noted.get("cloud", 0),
    )


def mark(layout: Layout) -> None:
    """Make a folder a lab's, which allows to remove it later."""
    partial = layout.root / f"{MARKER}.new"
    noted = {"nodes": layout.nodes, "accounting": layout.accounting, "cloud": layout.cloud}
    partial.write_text(json.dumps(noted) + "\n")
    partial.rename(layout.root / MARKER)


@contextmanager
def locked(root: Path, *, name: str = LOCK) -> Iterator[None]:
    """Hold a lab folder against other starters and stoppers; makes the folder.

    The lock file goes with the folder, so after waiting for it we may hold the lock of a
    file that is no more; then we take the new one.
    """
    path = root / name
    while True:
        root.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _names(path, handle):
                yield
                return
        finally:
            os.close(handle)


def clear(root: Path) -> None:
    """Remove everything but the locks from a lab folder.

    Raises:
        LabError: The folder holds files but no lab; nothing was removed.
    """
    inside = [path for path in root.iterdir() if path.name not in (LOCK, USERS_LOCK)]
    marked = any(path.name in (MARKER, f"{MARKER}.new") for path in inside)
    if inside and not marked:
        raise LabError(f"{root} holds no lab but other files; choose another folder")
    # The marker last: a removal that is cut short can then be repeated.
    for path in sorted(inside, key=lambda path: path.name == MARKER):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def remove(root: Path) -> None:
    """Remove a cleared lab folder, with the lock that the caller holds."""
    for name in (USERS_LOCK, LOCK):
        (root / name).unlink(missing_ok=True)
    root.rmdir()


def _names(path: Path, handle: int) -> bool:
    """Tell whether a path still names the file behind an open handle."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
