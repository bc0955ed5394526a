"""What kind of machine a node is (kernel, system, CPUs, memory), and the limits of a process."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterkit.core.data import read_snippet
from clusterkit.core.untrusted import whole
from clusterkit.preflight.probes.snippets import number_of, read_pairs, text_of
from clusterkit.transport.probe import Probe, Unparsed


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A machine and its operating system."""

    kernel: str
    arch: str
    os: str | None
    """As /etc/os-release calls it."""
    cpus: int
    """Logical CPUs that are online."""
    governors: tuple[str, ...]
    """Distinct frequency governors; empty where the kernel does not steer the clock (VMs)."""
    cpufreq_driver: str | None
    memory_kib: int
    available_kib: int | None
    huge_kib: int | None
    """Set aside for huge pages of all sizes."""
    transparent_huge_pages: str | None
    rdma_devices: tuple[str, ...]
    nvidia_gpus: int
    """GPUs that the NVIDIA driver holds, whichever of them a job may use."""


def parse(text: str) -> System:
    """Read the pairs of the snippet."""
    pairs = read_pairs(text)
    cpus, memory_kib = number_of(pairs, "cpus"), number_of(pairs, "MemTotal")
    if not cpus or not memory_kib:
        raise Unparsed("no CPUs or no memory")
    available, huge = pairs.get("MemAvailable"), pairs.get("Hugetlb")
    return System(
        kernel=text_of(pairs, "kernel"),
        arch=text_of(pairs, "arch"),
        os=pairs.get("os") or None,
        cpus=cpus,
        governors=tuple(pairs.get("governors", "").split()),
        cpufreq_driver=pairs.get("cpufreq_driver") or None,
        memory_kib=memory_kib,
        available_kib=whole(available) if available else None,
        huge_kib=whole(huge) if huge else None,
        transparent_huge_pages=pairs.get("thp") or None,
        rdma_devices=tuple(pairs.get("rdma", "").split()),
        nvidia_gpus=number_of(pairs, "nvidia"),
    )


PROBE = Probe(name="host-system", command=read_snippet("host_system"), parse=parse)


# Not `ulimit`: its options differ between shells, the kernel's table does not.
_SNIPPET = "cat /proc/self/limits"

_ROW = re.compile(
    r"^(Max [a-z]+(?: [a-z]+)*) {2,}(unlimited|\d{1,20}) +(?:unlimited|\d{1,20}) +[a-z]+ *$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Soft limits; None is unlimited."""

    locked_bytes: int | None
    """`ulimit -l`."""
    open_files: int | None
    """`ulimit -n`."""


def parse_limits(text: str) -> Limits:
    """Read `/proc/PID/limits` (Linux, fs/proc/base.c)."""
    rows = dict(_ROW.findall(text))
    try:
        locked, files = rows["Max locked memory"], rows["Max open files"]
    except KeyError as error:
        raise Unparsed(f"no row {error}") from None
    return Limits(
        locked_bytes=None if locked == "unlimited" else whole(locked),
        open_files=None if files == "unlimited" else whole(files),
    )


LIMITS = Probe(name="host-limits", command=_SNIPPET, parse=parse_limits)
