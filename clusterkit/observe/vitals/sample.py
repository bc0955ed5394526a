"""What nodes do: one script and one round trip per node, and what two readings of one say together.

A counter that has become smaller was reset in between (a driver loaded again, an interface made
anew): nothing is said of it, rather than something wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterkit.core.findings import Verdict
from clusterkit.observe.vitals import host
from clusterkit.observe.vitals.host import CpuQuota, HostVitals, LinkCounters, MemoryLimit
from clusterkit.preflight.checks.gpu_speed import SLOWDOWNS
from clusterkit.preflight.probes.gpu import vitals as gpu_probes
from clusterkit.preflight.probes.gpu.vitals import GpuVitals
from clusterkit.transport.base import Reply, Transport
from clusterkit.transport.probe import Missing, Output, PreflightJob, Probe, Reach, read_output
from clusterkit.transport.script import compose, new_token

PROBES: tuple[Probe[Any], ...] = (host.PROBE, gpu_probes.NVIDIA, gpu_probes.AMD)
"""One reading of a node: to be compared with an earlier one."""
ONCE: tuple[Probe[Any], ...] = (host.TWICE, gpu_probes.NVIDIA, gpu_probes.AMD)
"""Two readings, a second apart, in one answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSample:
    """One reading of a node."""

    host: HostVitals
    gpus: tuple[GpuVitals, ...] = ()
    gpu_problem: str = ""
    """Why GPUs could not be read; empty where all were, and where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVitals:
    """What came back from a node."""

    node: str
    samples: tuple[NodeSample, ...] = ()
    """In the order in which they were taken; none where `problem` says why."""
    problem: str = ""
    reach: Reach


def ask_vitals(
    transport: Transport,
    nodes: Sequence[str],
    *,
    once: bool = False,
    on_reply: Callable[[NodeVitals], None] = lambda _: None,
) -> tuple[NodeVitals, ...]:
    """Read every node once (with `once`, twice within a second); answers are in order.

    A node that does not answer is one with a `problem`; it holds nobody up beyond the time-out of
    the transport.

    Raises:
        RemoteError: the transport itself is not available.
    """
    job = PreflightJob(hosts=tuple(nodes))
    compound = compose(ONCE if once else PROBES, job, token=new_token())
    replies = transport.ask(nodes, compound, on_reply=lambda reply: on_reply(_read(reply)))
    return tuple(map(_read, replies))


def _read(reply: Reply) -> NodeVitals:
    reach = reply.reach
    if reach.problem is not None:
        problem = reach.detail or reach.problem.value
        return NodeVitals(node=reply.node, problem=problem, reach=reach)
    samples = read_samples(reply.outputs)
    if isinstance(samples, Missing):
        return NodeVitals(node=reply.node, problem=samples.reason, reach=reach)
    return NodeVitals(node=reply.node, samples=samples, reach=reach)


def read_samples(outputs: Mapping[str, Output]) -> tuple[NodeSample, ...] | Missing:
    """Return the readings that one answer of a node holds: one, or two with `host.TWICE`.

    GPUs are read once an answer; both readings hold the same. Without an answer about the host
    there is none, and the reason is returned.
    """
    probe = host.TWICE if host.TWICE.name in outputs else host.PROBE
    readings = read_output(probe, outputs.get(probe.name))
    if isinstance(readings, Missing):
        return readings
    gpus: list[GpuVitals] = []
    problems: list[str] = []
    for of_gpus in (gpu_probes.NVIDIA, gpu_probes.AMD):
        found = read_output(of_gpus, outputs.get(of_gpus.name))
        if not isinstance(found, Missing):
            gpus += found.gpus
            problems += [found.problem] if found.problem else []
        elif found.verdict is not Verdict.SKIP and of_gpus.name in outputs:
            problems.append(found.reason)
    return tuple(
        NodeSample(host=reading, gpus=tuple(gpus), gpu_problem="; ".join(problems))
        for reading in readings
    )


# From which on a figure is worth a word, in `top` and in `bench scaling`.
THROTTLED_PERCENT = 5.0
"""Of the scheduler's periods."""
IO_WAIT_PERCENT = 10.0
STEAL_PERCENT = 5.0
_SW_POWER_CAP = 0x4
"""nvml.h, nvmlClocksEventReasonSwPowerCap: as fast as the power limit allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What went through a network interface or an RDMA port, a second."""

    name: str
    received_bytes_per_s: float
    sent_bytes_per_s: float
    errors_per_s: float = 0.0
    """Packets with errors, and packets dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRates:
    """What a node did between two readings. Percentages are of all its CPUs together."""

    seconds: float
    cpu_percent: float
    waiting_percent: float
    """I/O wait: idle, with a read or write of a disk outstanding."""
    stolen_percent: float
    """CPU steal: used by the host of a virtual machine."""
    interfaces: tuple[Traffic, ...]
    ports: tuple[Traffic, ...]
    throttled_percent: float | None
    """Share of the scheduler's periods in which the hardest-pressed cgroup with a CPU limit used it
    up; None where no cgroup of the job has one."""
    throttled_at_cpus: float | None
    """The limit of that cgroup, in CPUs."""
    killed_at: tuple[MemoryLimit, ...]
    """Limits at which processes were killed, of nested ones the innermost; their `oom_kills` are
    those of this time alone."""
    process_cpu_percent: Mapping[int, float]
    """By pid; 100 is one CPU. Processes that were there both times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSlowdown:
    """A GPU whose clocks are held down."""

    index: int
    why: str
    """Such as `hardware thermal slowdown`."""
    harmful: bool
    """False for the power cap, which every GPU meets that works hard."""


def rates(before: NodeSample, after: NodeSample) -> NodeRates | None:
    """Return what the node did in between; None where it was restarted, or no time has passed."""
    old, new = before.host, after.host
    seconds = new.uptime_s - old.uptime_s
    ticks = new.ticks.total - old.ticks.total
    if seconds <= 0 or ticks <= 0:
        return None

    def share(then: int, now: int) -> float:
        return min(100.0, max(0.0, 100.0 * (now - then) / ticks))

    pressed = _pressed(old, new)
    return NodeRates(
        seconds=seconds,
        cpu_percent=share(old.ticks.busy, new.ticks.busy),
        waiting_percent=share(old.ticks.waiting, new.ticks.waiting),
        stolen_percent=share(old.ticks.stolen, new.ticks.stolen),
        interfaces=tuple(_traffic(old.interfaces, new.interfaces, seconds)),
        ports=tuple(_traffic(old.ports, new.ports, seconds)),
        throttled_percent=None if pressed is None else pressed[0],
        throttled_at_cpus=None if pressed is None else pressed[1].cpus,
        killed_at=_killed(old, new),
        process_cpu_percent=_processes(old, new, seconds),
    )


def slowdowns(gpus: Iterable[GpuVitals]) -> tuple[GpuSlowdown, ...]:
    """Return the GPUs whose clocks are held down, and why."""
    found = []
    for gpu in gpus:
        mask = gpu.clock_reasons or 0
        why = next((cause for bits, _, cause, _ in SLOWDOWNS if mask & bits == bits), None)
        if why is not None:
            found.append(GpuSlowdown(index=gpu.index, why=why, harmful=True))
        elif mask & _SW_POWER_CAP:
            found.append(GpuSlowdown(index=gpu.index, why="power cap", harmful=False))
    return tuple(found)


def _traffic(
    old: Iterable[LinkCounters], new: Iterable[LinkCounters], seconds: float
) -> Iterator[Traffic]:
    then = {one.name: one for one in old}
    for now in new:
        was = then.get(now.name)
        if was is None:
            continue
        received = now.received_bytes - was.received_bytes
        sent = now.sent_bytes - was.sent_bytes
        bad = now.errors + now.dropped - was.errors - was.dropped
        if min(received, sent, bad) >= 0:
            yield Traffic(
                name=now.name,
                received_bytes_per_s=received / seconds,
                sent_bytes_per_s=sent / seconds,
                errors_per_s=bad / seconds,
            )


def _pressed(old: HostVitals, new: HostVitals) -> tuple[float, CpuQuota] | None:
    """Return the cgroup that met its CPU limit in most of its periods, and that share.

    In a period (100 ms, as a rule) it may have been stopped for any part of the rest.
    """
    then = {one.path: one for one in old.quotas}
    found = []
    for now in new.quotas:
        was = then.get(now.path)
        periods = now.periods - was.periods if was is not None else -1
        if was is None or periods < 0:
            continue
        share = 100.0 * (now.throttled - was.throttled) / periods if periods else 0.0
        found.append((min(100.0, max(0.0, share)), now))
    return max(found, key=lambda pair: pair[0], default=None)


def _killed(old: HostVitals, new: HostVitals) -> tuple[MemoryLimit, ...]:
    """Return the limits at which processes were killed in between, with how many.

    The kernel counts a kill for the cgroup of the process and for all above it (cgroup-v2.rst,
    `memory.events`), so of nested ones the innermost counts.
    """
    then = {one.path: one.oom_kills for one in old.limits}
    counts = ((now, now.oom_kills - then.get(now.path, now.oom_kills)) for now in new.limits)
    grown = [(now, kills) for now, kills in counts if kills > 0]
    return tuple(
        replace(now, oom_kills=kills)
        for now, kills in grown
        if not any(one.path.startswith(f"{now.path}/") for one, _ in grown)
    )


def _processes(old: HostVitals, new: HostVitals, seconds: float) -> dict[int, float]:
    then = {(one.pid, one.started_ticks): one.cpu_s for one in old.processes}
    return {
        now.pid: 100.0 * max(0.0, now.cpu_s - then[now.pid, now.started_ticks]) / seconds
        for now in new.processes
        if (now.pid, now.started_ticks) in then
    }
