"""Slots of a node without a scheduler: who holds one has its name, and the kernel keeps it.

A slot is a name in the abstract namespace of unix sockets (unix(7)): one process of the machine can
have it, and it ends with the last process that has the socket, however that ends. So nothing is
left behind, no user needs a right to anything, and nobody's clean-up takes it away (files in
/dev/shm go when their owner logs out, see RemoveIPC in logind.conf(5)). A second name tells others
whose it is; /proc/net/unix lists both.

Users of one machine keep to it because they want to: anybody can take all names, or sign them as
somebody else. So what is signed is told and not believed.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from clusterkit.core.errors import RemoteError
from clusterkit.core.ownership import user_name
from clusterkit.core.ports import hold, is_held

_SPACE = "clusterkit"
_NAMES = Path("/proc/net/unix")
_JOB = 50
"""Bytes of a run id in a name; an abstract one has 107 (sun_path without its leading zero)."""
_TAKING_S = 10.0
"""How long another job may take to look through the slots."""


class Kind(StrEnum):
    """Why a node refuses, as far as it makes a difference what to do about it."""

    BUSY = "busy"
    TWICE = "twice"
    RELEASE = "release"
    SHARED = "shared"
    OTHER = "other"


class SlotsBusy(RemoteError):  # noqa: N818 - a state of the node, not a mistake of anyone
    """Other jobs hold the slots that are wanted."""

    kind = Kind.BUSY


class SameMachine(SlotsBusy):
    """This very job does, under another name of the machine."""

    kind = Kind.TWICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Slots that this process holds until it ends, as do those that inherit the sockets."""

    slots: tuple[int, ...]
    sockets: tuple[socket.socket, ...]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that keep them."""
        return tuple(held.fileno() for held in self.sockets)

    def release(self) -> None:
        """Give the slots back."""
        for held in self.sockets:
            held.close()


def take(count: int, offered: int, *, job: str, node: str, space: str = _SPACE) -> Held:
    """Take `count` of the `offered` slots of this machine, all of them or none.

    Raises:
        SlotsBusy: not so many are free; with their owners.
        RemoteError: the machine has not so many.
    """
    if count > offered:
        raise RemoteError(f"{count} slots are wanted, and it has {offered}", node=node)
    with _alone(space, node):
        if any(_cut(job) == one.job and _is_mine(one.inode) for one in _signatures(space).values()):
            raise SameMachine(
                "this job has slots there already, under another name of the same machine",
                node=node,
            )
        held: dict[int, socket.socket] = {}
        for slot in range(offered):
            if len(held) < count and (name := hold(f"{space}-slot {slot}")) is not None:
                held[slot] = name
        if len(held) < count:
            free = len(held)
            for name in held.values():
                name.close()
            owners = "; ".join(_owners(space, offered))
            plural = "s" if count > 1 else ""
            raise SlotsBusy(
                f"{count} slot{plural} wanted, {free} of {offered} free: {owners}", node=node
            )
        signs = [hold(_owner(space, slot, job)) for slot in held]
    sockets = (*held.values(), *(sign for sign in signs if sign is not None))
    return Held(slots=tuple(held), sockets=sockets)


def _owner(space: str, slot: int, job: str) -> str:
    user = user_name(os.getuid()).split()[-1]  # a number of its own where it has no name
    return f"{space}-owner {slot} {user[:20]} {int(time.time())} {_cut(job)}"


def _cut(job: str) -> str:
    """Return the end of a run id, which is what tells it from others, as far as there is room."""
    return job[-_JOB:]


def _owners(space: str, offered: int) -> list[str]:
    """Return who holds what, in words; slots of one owner together."""
    owned: dict[str, list[int]] = {}
    signed = _signatures(space)
    for slot in range(offered):
        if is_held(f"{space}-slot {slot}"):
            who = signed[slot].words if slot in signed else "a job that did not say who it is"
            owned.setdefault(who, []).append(slot)
    return [f"{_numbers(slots)} held by {who}" for who, slots in owned.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signature:
    """What the holder of a slot says of itself."""

    inode: str
    job: str
    """The end of its run id."""
    words: str


def _signatures(space: str) -> dict[int, _Signature]:
    """Return the signature of each slot that has one; anybody may have written it."""
    pattern = re.compile(
        rf"([0-9]{{1,20}}) @{re.escape(space)}-owner ([0-9]{{1,5}}) (\S+) ([0-9]{{1,10}}) (\S+)"
    )
    found = {}
    for line in _NAMES.read_text(errors="replace").splitlines():
        match = pattern.search(line)
        if match is not None and match.end() == len(line):
            inode, slot, user, since, job = match.groups()
            moment = datetime.fromtimestamp(int(since), tz=UTC).astimezone()
            owner = f"{job} of {user} since {moment:%Y-%m-%d %H:%M}"
            found[int(slot)] = _Signature(inode=inode, job=job, words=owner)
    return found


def _is_mine(inode: str) -> bool:
    """Tell whether a process of this user has the socket: nobody else's can be looked into."""
    target = f"socket:[{inode}]"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if not _runs_as_me(process):
                continue
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) == target:
                        return True
    return False


def _runs_as_me(process: Path) -> bool:
    """Tell whose process it is; the owner of its folder is root wherever it hides (prctl(2))."""
    status = (process / "status").read_text(errors="replace")
    return f"\nUid:\t{os.getuid()}\t" in status


def _numbers(slots: Sequence[int]) -> str:
    return f"slot{'s' * (len(slots) > 1)} {','.join(str(slot) for slot in slots)}"


@contextmanager
def _alone(space: str, node: str) -> Iterator[None]:
    """Keep others from taking slots meanwhile; else two jobs could each take half and both fail."""
    deadline = time.monotonic() + _TAKING_S
    while (turn := hold(f"{space}-taking")) is None:
        if time.monotonic() > deadline:
            raise RemoteError("another job has been taking slots there for too long", node=node)
        time.sleep(0.05)
    try:
        yield
    finally:
        turn.close()
