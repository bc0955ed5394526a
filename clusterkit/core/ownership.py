"""Whose a file is: what somebody else can write is data to look at, never something to act on.

Trusted is what belongs to the user or to root and can be written by nobody else. Of a group's right
to write, one is harmless: that of the private group which Debian and Red Hat give each user (umask
002 relies on it). A symbolic link must be trusted itself, and so must its target. POSIX ACLs count,
as st_mode shows their mask as the group's rights (acl(5)).
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core.errors import UserError

PRIVATE_FOLDER = 0o700
LARGEST = 16 << 20
"""Bytes of a text that is read whole: a hostfile of 100,000 hosts has a quarter of it."""
_ROOT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """Why a path is not ours to act on."""

    path: Path
    owner: str
    """Name of the user to whom it belongs, or the number where it has none."""
    reason: str
    """Such as `belongs to alice` or `can be written by the group hpc (mode 0664)`."""

    @property
    def of_another(self) -> bool:
        """Whether it is another user's; else it is one's own, and others can write it."""
        return self.reason.startswith("belongs")

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


def find_foreign(path: Path, trusted: Collection[int] = frozenset()) -> Foreign | None:
    """Return why `path` is not trusted, itself or what it links to; None where it is.

    Raises:
        OSError: it does not exist, or cannot be looked at.
    """
    here = path.lstat()
    found = judge(path, here, trusted)
    if found is None and stat.S_ISLNK(here.st_mode):
        found = judge(path.resolve(), path.stat(), trusted)
    return found


def judge(
    path: Path, status: os.stat_result, trusted: Collection[int] = frozenset()
) -> Foreign | None:
    """Return why what has this status is not trusted, such as an open file by `os.fstat`.

    `trusted` are ids of users who are trusted beside oneself and root.
    """
    owner = user_name(status.st_uid)
    reason = None
    mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
    if status.st_uid not in {os.geteuid(), _ROOT, *trusted}:
        reason = f"belongs to {owner}"
    elif stat.S_ISLNK(status.st_mode):
        pass  # its mode means nothing
    elif status.st_mode & stat.S_IWOTH:
        reason = f"can be written by everybody ({mode})"
    elif status.st_mode & stat.S_IWGRP and (group := _strange_group(status)) is not None:
        reason = f"can be written by the group {group} ({mode})"
    return Foreign(path=path, owner=owner, reason=reason) if reason else None


def find_foreign_in(folder: Path, names: Iterable[str] = ()) -> Foreign | None:
    """Return why a folder is not trusted: itself, its place, or these files and folders in it.

    Raises:
        OSError: the folder does not exist, or cannot be looked at.
    """
    found = find_foreign(folder) or _judge_place(Path(os.path.realpath(folder)))
    for path in (folder / name for name in names):
        with suppress(FileNotFoundError):
            found = found or judge(path, path.lstat())
    return found


def _judge_place(path: Path) -> Foreign | None:
    """Return whose folders let somebody else put another one in the place of `path`.

    Who may write the folder above it may rename it, unless that has the sticky bit as /tmp has. Of
    those further up only what everybody may write counts: who works in the folder of a project
    trusts its group.
    """
    for above in path.parents:
        status = above.stat()
        found = judge(above, status)
        nearest = above == path.parent
        if status.st_mode & stat.S_ISVTX and not (nearest and found and found.of_another):
            continue
        if found is not None and (nearest or status.st_mode & stat.S_IWOTH):
            return found
    return None


def read_own(
    path: Path,
    *,
    use: str,
    hint: str | None = None,
    trusted: Collection[int] = frozenset(),
    most: int = LARGEST,
) -> bytes:
    """Return what is in a file that is trusted: judged as opened, so that nobody can swap it.

    A file with several names (hard links) counts only where nobody else could have given it this
    one. A FIFO of one's own is read to its end.

    Raises:
        UserError: it is not trusted; says whose it is.
        OSError: it cannot be read, or holds more than `most` bytes.
    """
    with open_own(path, use=use, hint=hint, trusted=trusted) as descriptor:
        return _read_up_to(descriptor, most)


@contextmanager
def open_own(
    path: Path, *, use: str, hint: str | None = None, trusted: Collection[int] = frozenset()
) -> Iterator[int]:
    """Give the descriptor of a file that is trusted, as `read_own` reads it.

    Raises:
        UserError: it is not trusted; says whose it is.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        found = judge(path, status, trusted) or _wrong_name(path, status, trusted)
        if found is not None:
            raise refusal(found, use=use, hint=hint)
        os.set_blocking(descriptor, True)
        yield descriptor
    finally:
        os.close(descriptor)


def read_any(path: Path, *, most: int = LARGEST) -> bytes:
    """Return what is in a file that is data to look at, or named by the user outright.

    Raises:
        OSError: it cannot be read, or holds more than `most` bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return _read_up_to(descriptor, most)
    finally:
        os.close(descriptor)


def require_own(
    path: Path, *, use: str, hint: str | None = None, trusted: Collection[int] = frozenset()
) -> None:
    """Refuse to act on what somebody else can write.

    Args:
        path: A file or a folder; what does not exist is nobody's, and passes.
        use: What would be done, such as `read a configuration from it`.
        hint: What to type instead, where `chmod` is not the answer.
        trusted: Ids of users who are trusted beside oneself and root.

    Raises:
        UserError: it is not trusted, or cannot be looked at; says whose it is.
    """
    try:
        found = find_foreign(path, trusted)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot look at {path}: {error.strerror or error}") from error
    if found is not None:
        raise refusal(found, use=use, hint=hint)


def is_replaceable(path: Path) -> bool:
    """Tell whether others can give the name of `path` to something else, in a folder above it."""
    for folder in path.absolute().parents:
        status = folder.stat()
        sticky = status.st_mode & stat.S_ISVTX and status.st_uid in {os.geteuid(), _ROOT}
        if judge(folder, status) is not None and not sticky:
            return True
    return False


def refusal(found: Foreign, *, use: str, hint: str | None = None) -> UserError:
    """Return the error that refuses to act on a path of somebody else."""
    mine = found.owner == user_name(os.geteuid())
    if found.reason.startswith("can be written") and (mine or hint is None):
        hint = f"if nobody else has changed it: chmod go-w {shlex.quote(str(found.path))}"
    return UserError(f"{found}: clusterkit will not {use}", hint=hint)


def user_name(uid: int) -> str:
    """Return the name of a user, or `user 1234` where the number has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _wrong_name(path: Path, opened: os.stat_result, trusted: Collection[int]) -> Foreign | None:
    """Return why the name by which a file was opened is somebody else's doing."""
    named = path.lstat()
    if stat.S_ISLNK(named.st_mode):
        return judge(path, named, trusted)
    if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
        return Foreign(path=path, owner=user_name(named.st_uid), reason="was just replaced")
    if stat.S_ISREG(opened.st_mode) and opened.st_nlink > 1:
        folder = judge(path.parent, path.absolute().parent.stat(), trusted)
        if folder is not None:
            reason = f"is a hard link in a folder that {folder.reason}"
            return Foreign(path=path, owner=folder.owner, reason=reason)
    return None


def _read_up_to(descriptor: int, most: int) -> bytes:
    pieces, left = [], most + 1  # read(left) of a stream would take that much memory at once
    while left and (piece := os.read(descriptor, min(left, 1 << 20))):
        pieces.append(piece)
        left -= len(piece)
    if not left:
        raise OSError(errno.EFBIG, f"it holds more than {most >> 20} MiB")
    return b"".join(pieces)


def _strange_group(status: os.stat_result) -> str | None:
    """Return the name of the group, unless it is the one that was made for the owner alone."""
    name = str(status.st_gid)
    with suppress(KeyError):
        group = grp.getgrgid(status.st_gid)
        name = group.gr_name
        owner = pwd.getpwuid(status.st_uid)
        alone = set(group.gr_mem) <= {owner.pw_name}
        if owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name and alone:
            return None
    return name
