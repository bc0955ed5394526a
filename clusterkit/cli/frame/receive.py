"""Write here what a login node sends of a folder: whole files below one folder, through no link."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from clusterkit.core import files
from clusterkit.core.errors import RemoteError
from clusterkit.executors.ssh.inbox import Inbox, Piece, next_answer, relative

_PART = PurePosixPath(".clusterkit.ck-part")
_MOST = 1 << 45
"""Bytes: the user asked for it, and the disk tells where it ends."""


def receive(helper: Any, folder: str, names: Sequence[str], target: Path) -> int:
    """Bring files, and all below folders, of a folder there into `target`.

    A file that has the same size and time here is not sent again, so that what was broken off goes
    on with the next file.

    Returns:
        How many files were brought.

    Raises:
        RemoteError: there are none of these names, or the node sends what it was not asked for.
        UserError: they cannot be written here.
    """
    files.create_folder(target)
    inbox = Inbox(target, helper.node)
    wanted = [relative(name, node=helper.node) for name in names]
    helper.tell(
        "fetch",
        folder=folder,
        have=dict(_have(target, wanted)),
        small=(),
        small_most=0,
        logs={},
        logs_most=0,
        trees=[str(name) for name in wanted],
        tree_most=_MOST,
    )
    try:
        count, left_out = _take(helper, inbox, wanted)
    finally:
        inbox.remove(_PART)
    if left_out:
        raise RemoteError(
            f"{left_out} files have names that cannot be printed, and are still there",
            node=helper.node,
        )
    return count


def _take(helper: Any, inbox: Inbox, wanted: Sequence[PurePosixPath]) -> tuple[int, int]:
    """Write what comes; return how many files that were, and how many the node left out."""
    count, at = 0, 0
    answer, data = next_answer(helper)
    while isinstance(answer, Piece):
        path = relative(answer.file, node=helper.node)
        if not any(path == name or name in path.parents for name in wanted):
            raise helper.nonsense(f"a file that it was not asked for: {answer.file[:80]!r}")
        if answer.offset == 0:
            inbox.remove(_PART)
            at = 0
        if answer.offset != at or not (data or answer.last):
            raise helper.nonsense(f"{answer.file[:80]!r} at {answer.offset}")
        inbox.write_at(_PART, at, data)
        at += len(data)
        if answer.last:
            inbox.give_name(_PART, path, executable=bool(answer.mode & 0o100))
            os.utime(inbox.root / path, ns=(answer.sign[1], answer.sign[1]), follow_symlinks=False)
            count += 1
        answer, data = next_answer(helper)
    return count, answer.left_out


def _have(target: Path, wanted: Sequence[PurePosixPath]) -> dict[str, tuple[int, int]]:
    """Return size and time of what is here already."""
    found = {}
    for name in wanted:
        top = target / name
        for path in (top, *(top.rglob("*") if top.is_dir() else ())):
            if path.is_file() and not path.is_symlink():
                about = path.stat()
                found[str(path.relative_to(target))] = (about.st_size, about.st_mtime_ns)
    return found
