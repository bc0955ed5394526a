"""Slots of a node without a scheduler: who holds one says so, and the kernel keeps it.

A slot is a file in a folder of the machine's memory; who holds it has an flock(2) on it. The lock
ends with the last process that has the file open, however it ends, so nothing stale is left. What
stands in the file only tells others whose it is.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from clusterkit import files, processes
from clusterkit.errors import RemoteError

_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own is made there
_EVERYBODY = 0o666
_STICKY = 0o1777


class SlotsBusy(RemoteError):  # noqa: N818 - a state of the node, not a mistake of anyone
    """Other jobs hold the slots that are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Slots that this process holds until it ends, or closes the descriptors."""

    slots: tuple[int, ...]
    descriptors: tuple[int, ...]

    def release(self) -> None:
        """Give the slots back."""
        for descriptor in self.descriptors:
            os.ftruncate(descriptor, 0)
            os.close(descriptor)


def slots_folder() -> Path:
    """Return the folder of the slots of this machine, the same for all of its users."""
    if _MEMORY.is_dir():
        return _MEMORY / "clusterkit-slots"
    return Path(tempfile.gettempdir()) / f"clusterkit-slots-{socket.gethostname()}"


def take(wanted: int, offered: int, *, job: str, node: str, folder: Path | None = None) -> Held:
    """Take `wanted` of the `offered` slots of this machine, at once and without waiting.

    Raises:
        SlotsBusy: not so many are free; with their owners.
        RemoteError: the machine has not so many.
    """
    if wanted > offered:
        raise RemoteError(f"{wanted} slots are wanted, and it has {offered}", node=node)
    here = folder or slots_folder()
    with files.explained(here):
        here.mkdir(exist_ok=True)
        _let_everybody(here, _STICKY)
        with _alone(here):
            held: dict[int, int] = {}
            others: dict[int, int] = {}
            for slot in range(offered):
                descriptor = _open(here / f"slot-{slot}")
                free = len(held) < wanted and _locked(descriptor)
                (held if free else others)[slot] = descriptor
            owners = _owners(others)
            for descriptor in others.values():
                os.close(descriptor)
            if len(held) < wanted:
                for descriptor in held.values():
                    os.close(descriptor)
                raise _busy(wanted, len(held), offered, owners, node)
            for descriptor in held.values():
                _sign(descriptor, job)
    return Held(slots=tuple(held), descriptors=tuple(held.values()))


def _busy(wanted: int, free: int, offered: int, owners: Sequence[str], node: str) -> SlotsBusy:
    plural = "s" if wanted > 1 else ""
    return SlotsBusy(
        f"{wanted} slot{plural} wanted, {free} of {offered} free: {'; '.join(owners)}",
        node=node,
        hint=f"wait for that job or cancel it, or leave the node out: --exclude {node}",
    )


def _sign(descriptor: int, job: str) -> None:
    owner = {
        "job": job,
        "user": _user(),
        "pid": os.getpid(),
        "boot_id": processes.boot_id(),
        "since": time.time(),
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def _owners(busy: dict[int, int]) -> list[str]:
    """Return who holds what, in words; slots of one owner together."""
    told: dict[str, list[int]] = {}
    for slot, descriptor in busy.items():
        try:
            owner = json.loads(os.pread(descriptor, 4096, 0))
            since = datetime.fromtimestamp(owner["since"], tz=UTC).astimezone()
            who = f"{owner['job']} of {owner['user']} since {since:%Y-%m-%d %H:%M}"
        except (ValueError, KeyError, TypeError):
            who = "a job that did not say who it is"
        told.setdefault(who, []).append(slot)
    return [f"{_numbers(slots)} held by {who}" for who, slots in told.items()]


def _numbers(slots: Sequence[int]) -> str:
    return f"slot{'s' * (len(slots) > 1)} {','.join(str(slot) for slot in slots)}"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def _open(path: Path) -> int:
    # Where it is there it must not be created again: Linux refuses that for files of others in
    # sticky folders (fs.protected_regular).
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, _EVERYBODY)
        _let_everybody(descriptor, _EVERYBODY)
        return descriptor


def _let_everybody(what: Path | int, mode: int) -> None:
    about = os.stat(what)  # noqa: PTH116 - of a path, or of a descriptor
    if about.st_uid == os.getuid() and about.st_mode & 0o7777 != mode:
        os.chmod(what, mode)  # noqa: PTH101


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep others from taking slots meanwhile; else two jobs could each take half and both fail."""
    descriptor = _open(folder / "taking")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
