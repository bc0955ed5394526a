"""What kind of machine a node is: kernel, operating system, processors, memory."""

from __future__ import annotations

from dataclasses import dataclass

from clusterkit.core.data import read_snippet
from clusterkit.preflight.probes.net.pairs import number_of, read_pairs, text_of, whole_number
from clusterkit.transport.probe import Probe, Unparsed


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A machine and its operating system."""

    kernel: str
    arch: str
    os: str | None
    """As /etc/os-release calls it."""
    cpus: int
    """Logical processors that are online."""
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
        raise Unparsed("no processors or no memory")
    available, huge = pairs.get("MemAvailable"), pairs.get("Hugetlb")
    return System(
        kernel=text_of(pairs, "kernel"),
        arch=text_of(pairs, "arch"),
        os=pairs.get("os") or None,
        cpus=cpus,
        governors=tuple(pairs.get("governors", "").split()),
        cpufreq_driver=pairs.get("cpufreq_driver") or None,
        memory_kib=memory_kib,
        available_kib=whole_number(available) if available else None,
        huge_kib=whole_number(huge) if huge else None,
        transparent_huge_pages=pairs.get("thp") or None,
        rdma_devices=tuple(pairs.get("rdma", "").split()),
        nvidia_gpus=number_of(pairs, "nvidia"),
    )


PROBE = Probe(name="host-system", command=read_snippet("host_system"), parse=parse)
