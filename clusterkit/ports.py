"""Ports for a job: groups of `PORT_STRIDE` in the cluster's range, in an order of its own."""

from __future__ import annotations

import errno
import socket
import zlib
from collections.abc import Iterator

from clusterkit.errors import RemoteError
from clusterkit.model import PORT_STRIDE


def groups(low: int, high: int, *, seed: str) -> Iterator[int]:
    """Yield the first of each group of `PORT_STRIDE` ports in `low..high`, starting at `seed`."""
    steps = max(1, (high - low + 1) // PORT_STRIDE)
    start = zlib.crc32(seed.encode()) % steps
    for step in range(steps):
        yield low + (start + step) % steps * PORT_STRIDE


def free_port(low: int, high: int, *, seed: str, address: str) -> int:
    """Return a port in `low..high` on which one can listen, starting where `seed` points.

    Raises:
        RemoteError: all are taken.
    """
    for port in groups(low, high, seed=seed):
        if is_free(address, port):
            return port
    raise RemoteError(f"no free port in {low}-{high}", hint="set `port_range` to another range")


def is_free(address: str, port: int) -> bool:
    """Tell whether one can listen on this port.

    Raises:
        RemoteError: the address is none of this machine.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise RemoteError(f"cannot listen on {address}: {error.strerror}") from error
    return True
