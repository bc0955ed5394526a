"""The facts of nodes that the page shows: a column each, or one line where all nodes agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.preflight.checks.base import NodeFacts
from clusterkit.preflight.probes.gpu import amd_gpus, nvidia_gpus
from clusterkit.preflight.probes.gpu.amd_gpus import AmdGpu
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu
from clusterkit.preflight.probes.host import disks, job_python
from clusterkit.preflight.probes.host import system as host_system
from clusterkit.preflight.probes.net import interfaces, rdma_ports
from clusterkit.preflight.probes.net.rdma_ports import Rdma
from clusterkit.transport.probe import Missing, Probe

T = TypeVar("T")

_GIB = 2**20
"""In KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something worth knowing of every node."""

    label: str
    of: Callable[[NodeFacts], str | None]
    """None where it is not known of that node."""
    measured: bool = False
    """A figure that differs between healthy nodes, so that nobody is the odd one out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A cell of the table."""

    text: str
    odd: bool
    """Whether most nodes say something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Facts of all nodes."""

    common: tuple[tuple[str, str], ...]
    """Label and value of what all nodes that were reached agree on."""
    labels: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    """One a node, in rank order."""


def fact_table(nodes: Sequence[NodeFacts]) -> Table:
    """Return what is known of `nodes`; facts that no node has are left out."""
    reached = [index for index, node in enumerate(nodes) if node.reach.problem is None]
    common: list[tuple[str, str]] = []
    labels: list[str] = []
    columns: list[list[Value]] = []
    for fact in FACTS:
        texts = [fact.of(node) for node in nodes]
        seen = Counter(texts[index] for index in reached)
        if not set(seen) - {None}:
            continue
        usual, number = seen.most_common(1)[0]
        if usual is not None and number == len(reached):
            common.append((fact.label, usual))
            continue
        judged = not fact.measured and number * 2 > len(reached)
        labels.append(fact.label)
        columns.append(
            [
                Value(text=text or _DASH, odd=judged and text is not None and text != usual)
                for text in texts
            ]
        )
    rows = tuple(zip(*columns, strict=True)) if columns else ((),) * len(nodes)
    return Table(common=tuple(common), labels=tuple(labels), rows=rows)


_DASH = "\u2013"


def _from(probe: Probe[T], value: Callable[[T], str | None]) -> Callable[[NodeFacts], str | None]:
    def read(node: NodeFacts) -> str | None:
        facts = node.of(probe)
        return None if isinstance(facts, Missing) else value(facts)

    return read


def _reached(node: NodeFacts) -> str:
    if node.reach.problem is not None:
        return f"no: {node.reach.problem}"
    return node.reach.via if node.reach.complete else f"{node.reach.via}, cut off"


def _ms(seconds: float | None, sign: str = "") -> str | None:
    if seconds is None:
        return None
    ms = seconds * 1000
    return f"{ms:{sign}.1f} ms" if abs(ms) < 100 else f"{ms:{sign}.0f} ms"


def _size(kib: int) -> str:
    if kib < _GIB:
        return f"{kib / 1024:.0f} MiB" if kib >= 1024 else f"{kib} KiB"
    return f"{kib / _GIB:.0f} GiB" if kib >= 10 * _GIB else f"{kib / _GIB:.1f} GiB"


def _named(gpus: Iterable[Gpu | AmdGpu]) -> str | None:
    counts = Counter((gpu.name or "AMD GPU").removeprefix("NVIDIA ") for gpu in gpus)
    return ", ".join(f"{number}x {name}" for name, number in counts.items()) or None


def _hottest(facts: nvidia_gpus.NvidiaGpus) -> str | None:
    known = [gpu.temperature_c for gpu in facts.gpus if gpu.temperature_c is not None]
    return f"{max(known):.0f} C" if known else None


def _rdma(facts: Rdma) -> str | None:
    rates = Counter(port.rate_gbps for port in facts.ports if port.active)
    parts = [f"{n}x {rate:g} Gb/s" if rate else f"{n} active" for rate, n in rates.most_common()]
    idle = len(facts.ports) - rates.total()
    return ", ".join([*parts, f"{idle} down"] if idle else parts) or None


def _interfaces(facts: tuple[interfaces.Interface, ...]) -> str | None:
    """Return the fastest interfaces; the others carry management."""
    fastest = max((nic.speed_mbps or 0 for nic in facts), default=0)
    if not fastest:
        return None
    names = [nic.name for nic in facts if nic.speed_mbps == fastest]
    return f"{fold_set(names)} {fastest / 1000:g} Gbit/s"


def _torch(facts: job_python.JobPython | None) -> str | None:
    if facts is None or facts.torch is None:
        return None
    version = facts.torch.partition("+")[0]
    built = f"CUDA {facts.cuda}" if facts.cuda else f"HIP {facts.hip}" if facts.hip else "CPU"
    return f"{version}, {built}"


def _limit(value: int | None) -> str:
    return "unlimited" if value is None else _size(value // 1024)


FACTS = (
    Fact(label="reached", of=_reached),
    Fact(label="latency", of=lambda node: _ms(node.reach.latency_s), measured=True),
    Fact(label="clock", of=lambda node: _ms(node.reach.clock_skew_s, "+"), measured=True),
    Fact(label="OS", of=_from(host_system.PROBE, lambda system: system.os)),
    Fact(label="kernel", of=_from(host_system.PROBE, lambda system: system.kernel)),
    Fact(label="CPUs", of=_from(host_system.PROBE, lambda s: f"{s.cpus} {s.arch}")),
    Fact(label="governor", of=_from(host_system.PROBE, lambda s: " ".join(s.governors) or None)),
    Fact(label="memory", of=_from(host_system.PROBE, lambda system: _size(system.memory_kib))),
    Fact(
        label="shared memory",
        of=_from(disks.PROBE, lambda d: _size(d.shm.size_kib) if d.shm else None),
    ),
    Fact(label="memlock", of=_from(host_system.LIMITS, lambda limits: _limit(limits.locked_bytes))),
    Fact(label="GPUs", of=_from(nvidia_gpus.PROBE, lambda facts: _named(facts.gpus) or "none")),
    Fact(label="AMD GPUs", of=_from(amd_gpus.PROBE, lambda facts: _named(facts.gpus))),
    Fact(label="driver", of=_from(nvidia_gpus.PROBE, lambda facts: facts.driver)),
    Fact(label="hottest", of=_from(nvidia_gpus.PROBE, _hottest), measured=True),
    Fact(label="RDMA ports", of=_from(rdma_ports.PROBE, _rdma)),
    Fact(label="interfaces", of=_from(interfaces.PROBE, _interfaces)),
    Fact(
        label="Python",
        of=_from(job_python.PROBE, lambda p: p.version if p else None),
    ),
    Fact(label="torch", of=_from(job_python.PROBE, _torch)),
    Fact(label="NCCL", of=_from(job_python.PROBE, lambda p: p.nccl if p else None)),
)
"""In the order of the columns; another fact is another line."""
