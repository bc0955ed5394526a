"""Processes that compute on the GPUs, with their users."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterkit.core.data import read_snippet
from clusterkit.core.untrusted import whole
from clusterkit.preflight.probes.gpu.nvidia import cell, nvidia_probe
from clusterkit.transport.probe import Unparsed, first_line

_LINE = re.compile(r"(\S+) (\d+), ([^,]*), (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """One process that holds a compute context."""

    pid: int
    user: str | None
    """None where the process is of another container or has just ended."""
    name: str
    memory: str | None
    """As nvidia-smi writes it, such as `4096 MiB`."""


def parse(text: str) -> tuple[GpuProcess, ...]:
    """Read what the snippet prints; one process on several GPUs is listed once."""
    head, *lines = text.splitlines() or [""]
    if head.strip() != "processes":
        raise Unparsed(f"no list of processes: {first_line(text)[:60]!r}")
    found: dict[int, GpuProcess] = {}
    for line in lines:
        if not line.strip():
            continue
        said = _LINE.fullmatch(line.strip())
        if said is None:
            if "no running processes" in line.lower():
                continue
            raise Unparsed(f"no process: {first_line(line)[:60]!r}")
        user = None if said[1] in {"-", "UNKNOWN"} else said[1]
        process = GpuProcess(pid=whole(said[2]), user=user, name=said[4], memory=cell(said[3]))
        found.setdefault(process.pid, process)
    return tuple(found.values())


PROBE = nvidia_probe("nvidia-processes", read_snippet("nvidia_processes"), parse)
