"""Ask NCCL itself where the ranks of a job stand: since 2.24 its RAS tells on any node of all.

It speaks lines of text, to `ncclras` as to anybody: NCCL's user guide, and src/ras/client.cc.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

from clusterkit.core import processes

_VARIABLE = b"NCCL_RAS_ADDR="
_DEFAULT = "localhost:28028"
_ADDRESS = re.compile(r"\[?([^\[\]/]{1,255})\]?:(\d{1,5})")
_CONNECT_S = 2.0
_LARGEST = 1 << 19
"""Bytes of an answer; a job of a thousand ranks that all differ takes some 100 KB."""
_LISTENS = "0A"


def ask(pids: Iterable[int], timeout_s: float) -> str:
    """Return what RAS says of the job of these processes; empty where none of this user listens.

    Whoever else has the port could say anything: then it is not asked.
    """
    found = _ADDRESS.fullmatch(next(_addresses(pids), _DEFAULT))
    if found is None or not 0 < (port := int(found[2])) < 1 << 16 or not _ours(port):
        return ""
    said, deadline = b"", time.monotonic() + timeout_s
    with (
        suppress(OSError, UnicodeError),  # the latter: a host that no name can be
        socket.create_connection((found[1], port), _CONNECT_S) as server,
    ):
        server.sendall(b"timeout %d\nverbose status\n" % max(1, timeout_s // 3))
        while len(said) < _LARGEST and (left := deadline - time.monotonic()) > 0:
            server.settimeout(left)
            if not (more := server.recv(1 << 16)):
                break
            said += more
    return said[:_LARGEST].decode(errors="replace")


def _addresses(pids: Iterable[int]) -> Iterator[str]:
    for pid in pids:
        for item in processes.environment(pid):
            if item.startswith(_VARIABLE):
                yield os.fsdecode(item.removeprefix(_VARIABLE))


def _ours(port: int) -> bool:
    """Tell whether a process of this user listens at a port of this machine, and nobody else."""
    users = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError, ValueError, IndexError):
            for line in (processes.PROC / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()  # proc(5): local address, remote, state, ..., user
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    users.add(int(fields[7]))
    return users == {os.getuid()}
