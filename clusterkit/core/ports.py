"""Names and ports that one process of this machine alone can hold, until it ends however it ends.

Names are in the abstract namespace of unix sockets (unix(7)), of which every network namespace has
its own: nothing is left behind, and no user needs a right to anything. Ports of a job are groups of
`PORT_STRIDE` in the cluster's range, in an order of its own.
"""

from __future__ import annotations

import errno
import socket
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from clusterkit.core.errors import RemoteError
from clusterkit.core.model import PORT_STRIDE


def hold(name: str) -> socket.socket | None:
    """Return the socket that holds a name of at most 107 bytes; None where another process does.

    Raises:
        RemoteError: the machine has no room for it.
    """
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(b"\0" + name.encode())
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise RemoteError(f"cannot hold {name}: {error.strerror}") from error
    return held


def is_held(name: str) -> bool:
    """Tell whether a process holds this name."""
    held = hold(name)
    if held is not None:
        held.close()
    return held is None


def groups(low: int, high: int, *, seed: str) -> Iterator[int]:
    """Yield the first of each group of `PORT_STRIDE` ports in `low..high`, starting at `seed`."""
    steps = max(1, (high - low + 1) // PORT_STRIDE)
    start = zlib.crc32(seed.encode()) % steps
    for step in range(steps):
        yield low + (start + step) % steps * PORT_STRIDE


@dataclass(frozen=True, slots=True)
class HeldPort:
    """A group of ports that no other job of this machine gets while this process has it."""

    number: int
    """The first of the group."""
    hold: socket.socket


def hold_port(low: int, high: int, *, seed: str) -> HeldPort:
    """Return the first free group of ports in `low..high`, starting where `seed` points.

    To find it free is not enough: a launcher listens seconds later, after it has imported torch.

    Raises:
        RemoteError: all are taken.
    """
    for port in groups(low, high, seed=seed):
        held = hold(f"clusterkit-port-{port}")
        if held is not None:
            if is_group_free(port):
                return HeldPort(port, held)
            held.close()
    raise RemoteError(f"no free port in {low}-{high}", hint="set `port_range` to another range")


def is_group_free(first: int) -> bool:
    """Tell whether all ports of the group that begins with `first` are free.

    Raises:
        RemoteError: this machine lets nobody listen.
    """
    return all(is_free(port) for port in range(first, min(first + PORT_STRIDE, 1 << 16)))


def is_free(port: int) -> bool:
    """Tell whether one can listen on this port, on all addresses as most launchers do.

    Raises:
        RemoteError: this machine lets nobody listen.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise RemoteError(f"cannot listen: {error.strerror}") from error
    return True
