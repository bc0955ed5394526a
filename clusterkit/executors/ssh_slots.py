"""Slots of a node without a scheduler: who holds one has its name, and the kernel keeps it.

A slot is a name in the abstract namespace of unix sockets (unix(7)): one process of the machine can
have it, and it ends with the last process that has the socket, however that ends. So nothing is
left behind, no user needs a right to anything, and nobody's clean-up takes it away (files in
/dev/shm go when their owner logs out, see RemoveIPC in logind.conf(5)). A second name tells others
whose it is; /proc/net/unix lists both.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from clusterkit.errors import RemoteError
from clusterkit.holds import hold, is_held

_SPACE = "clusterkit"
_NAMES = Path("/proc/net/unix")
_JOB = 50
"""Bytes of a run id in a name; an abstract one has 107 (sun_path without its leading zero)."""
_TAKING_S = 10.0
"""How long another job may take to look through the slots."""


class SlotsBusy(RemoteError):  # noqa: N818 - a state of the node, not a mistake of anyone
    """Other jobs hold the slots that are wanted."""


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


def take(wanted: int, offered: int, *, job: str, node: str, space: str = _SPACE) -> Held:
    """Take `wanted` of the `offered` slots of this machine, all of them or none.

    Raises:
        SlotsBusy: not so many are free; with their owners.
        RemoteError: the machine has not so many.
    """
    if wanted > offered:
        raise RemoteError(f"{wanted} slots are wanted, and it has {offered}", node=node)
    with _alone(space, node):
        if any(_cut(job) == other for other, _ in _signatures(space).values()):
            raise SlotsBusy(
                "this job has slots there already, under another name of the same machine",
                node=node,
                hint=f"name each machine once, or leave this name out: --exclude {node}",
            )
        held: dict[int, socket.socket] = {}
        for slot in range(offered):
            if len(held) < wanted and (name := hold(f"{space}-slot {slot}")) is not None:
                held[slot] = name
        if len(held) < wanted:
            free = len(held)
            for name in held.values():
                name.close()
            raise _busy(wanted, free, offered, _owners(space, offered), node)
        signs = [hold(_owner(space, slot, job)) for slot in held]
    sockets = (*held.values(), *(sign for sign in signs if sign is not None))
    return Held(slots=tuple(held), sockets=sockets)


def _busy(wanted: int, free: int, offered: int, owners: Sequence[str], node: str) -> SlotsBusy:
    plural = "s" if wanted > 1 else ""
    return SlotsBusy(
        f"{wanted} slot{plural} wanted, {free} of {offered} free: {'; '.join(owners)}",
        node=node,
    )


def _owner(space: str, slot: int, job: str) -> str:
    return f"{space}-owner {slot} {_user()[:20]} {int(time.time())} {_cut(job)}"


def _cut(job: str) -> str:
    """Return the end of a run id, which is what tells it from others, as far as there is room."""
    return job[-_JOB:]


def _owners(space: str, offered: int) -> list[str]:
    """Return who holds what, in words; slots of one owner together."""
    told: dict[str, list[int]] = {}
    signed = _signatures(space)
    for slot in range(offered):
        if is_held(f"{space}-slot {slot}"):
            _, who = signed.get(slot, ("", "a job that did not say who it is"))
            told.setdefault(who, []).append(slot)
    return [f"{_numbers(slots)} held by {who}" for who, slots in told.items()]


def _signatures(space: str) -> dict[int, tuple[str, str]]:
    """Return the owner of each slot that has one: the end of its run id, and all of it in words."""
    pattern = re.compile(
        rf"@{re.escape(space)}-owner (\d+) (\S+) (\d{{1,12}}) (\S+)$", re.MULTILINE
    )
    found = {}
    for slot, user, since, job in pattern.findall(_NAMES.read_text(errors="replace")):
        moment = datetime.fromtimestamp(int(since), tz=UTC).astimezone()
        found[int(slot)] = job, f"{job} of {user} since {moment:%Y-%m-%d %H:%M}"
    return found


def _numbers(slots: Sequence[int]) -> str:
    return f"slot{'s' * (len(slots) > 1)} {','.join(str(slot) for slot in slots)}"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


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
