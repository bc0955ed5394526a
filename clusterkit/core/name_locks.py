"""Names of which one process of this machine can hold each, until it ends however it ends.

They are in the abstract namespace of unix sockets (unix(7)), of which every network namespace has
its own: nothing is left behind, and no user needs a right to anything.
"""

from __future__ import annotations

import errno
import socket

from clusterkit.core.errors import RemoteError


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
