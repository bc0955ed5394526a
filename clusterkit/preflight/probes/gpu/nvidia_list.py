"""Whether nvidia-smi answers, which GPUs and MIG devices it lists, and what computes on them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from clusterkit.core.data import read_snippet
from clusterkit.core.untrusted import whole
from clusterkit.preflight.probes.gpu.nvidia import cell, nvidia_probe
from clusterkit.transport.probe import Unparsed, first_line

_GPU = re.compile(r"GPU (\d+): (.+) \(UUID: (GPU-[0-9a-fA-F-]+)\)\s*")
_HIGHEST = 9999
_MIG = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGpu:
    """One line of `nvidia-smi -L` and the MIG devices below it."""

    index: int
    name: str
    uuid: str
    mig: tuple[str, ...] = ()
    """Profiles such as `3g.40gb`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaList:
    """What `nvidia-smi -L` said."""

    exit_code: int
    gpus: tuple[ListedGpu, ...]
    problems: tuple[str, ...]
    """Lines that are no device: a lost GPU, a driver that does not run, a corrupt infoROM."""


def parse(text: str) -> NvidiaList:
    """Read `exit N` and the answer of `nvidia-smi -L` below it."""
    head, _, body = text.partition("\n")
    code = re.fullmatch(r"exit (\d{1,3})", head.strip())
    if code is None:
        raise Unparsed(f"no exit code: {first_line(text)[:60]!r}")
    return read_list(body, exit_code=whole(code[1]))


def read_list(text: str, *, exit_code: int = 0) -> NvidiaList:
    """Read `nvidia-smi -L`; raises `Unparsed` where it ends well and names a thing unknown."""
    gpus: list[ListedGpu] = []
    problems: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        if gpu := _GPU.fullmatch(line):
            gpus.append(ListedGpu(index=whole(gpu[1], maximum=_HIGHEST), name=gpu[2], uuid=gpu[3]))
        elif (mig := _MIG.fullmatch(line)) and gpus:
            gpus[-1] = replace(gpus[-1], mig=(*gpus[-1].mig, mig[1]))
        elif exit_code == 0 and line.lstrip().startswith(("GPU ", "MIG ")):
            raise Unparsed(f"no device: {first_line(line)[:60]!r}")
        else:
            problems.append(first_line(line))
    if exit_code == 0 and not gpus:
        raise Unparsed("no GPU is listed")
    return NvidiaList(exit_code=exit_code, gpus=tuple(gpus), problems=tuple(problems))


PROBE = nvidia_probe("nvidia-list", read_snippet("nvidia_list"), parse)


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


def parse_processes(text: str) -> tuple[GpuProcess, ...]:
    """Read what the snippet prints; one process on several GPUs is listed once."""
    head, *lines = text.splitlines() or [""]
    if head.strip() != "processes":
        raise Unparsed(f"no list of processes: {first_line(text)[:60]!r}")
    found: dict[int, GpuProcess] = {}
    for line in lines:
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            if "no running processes" in line.lower():
                continue
            raise Unparsed(f"no process: {first_line(line)[:60]!r}")
        user = None if match[1] in {"-", "UNKNOWN"} else match[1]
        process = GpuProcess(pid=whole(match[2]), user=user, name=match[4], memory=cell(match[3]))
        found.setdefault(process.pid, process)
    return tuple(found.values())


PROCESSES = nvidia_probe("nvidia-processes", read_snippet("nvidia_processes"), parse_processes)
