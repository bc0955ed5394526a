"""Whether nvidia-smi answers at all, and which GPUs and MIG devices it lists (`nvidia-smi -L`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterkit.core.data import read_snippet
from clusterkit.core.untrusted import whole
from clusterkit.preflight.probes.gpu.nvidia import nvidia_probe
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
            gpus.append(ListedGpu(index=whole(gpu[1], most=_HIGHEST), name=gpu[2], uuid=gpu[3]))
        elif (mig := _MIG.fullmatch(line)) and gpus:
            last = gpus.pop()
            gpus.append(
                ListedGpu(index=last.index, name=last.name, uuid=last.uuid, mig=(*last.mig, mig[1]))
            )
        elif exit_code == 0 and line.lstrip().startswith(("GPU ", "MIG ")):
            raise Unparsed(f"no device: {first_line(line)[:60]!r}")
        else:
            problems.append(first_line(line))
    if exit_code == 0 and not gpus:
        raise Unparsed("no GPU is listed")
    return NvidiaList(exit_code=exit_code, gpus=tuple(gpus), problems=tuple(problems))


PROBE = nvidia_probe("nvidia-list", read_snippet("nvidia_list"), parse)
