"""What is known at one moment, what of it slows a job down, and what `top --json` prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from clusterkit.core.findings import Verdict
from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.core.model import JobState
from clusterkit.core.records import picked
from clusterkit.core.throughput import Throughput
from clusterkit.jobs import nccl_network
from clusterkit.jobs.nccl_network import Network
from clusterkit.observe.vitals.host import Process
from clusterkit.observe.vitals.sample import (
    IO_WAIT_PERCENT,
    STEAL_PERCENT,
    THROTTLED_PERCENT,
    NodeRates,
    NodeSample,
    Traffic,
    slowdowns,
)

_STALE_S = 15.0
_MIN_MEMORY = 0.05
"""Of the node, that should be left."""
_BAD_PACKETS_PER_S = 10.0
_IDLE_PERCENT, _WORKING_PERCENT = 5.0, 50.0
"""A GPU below the one beside others that are above the other waits for something they do not."""
_ORDER = (Verdict.WARN, Verdict.UNKNOWN, Verdict.FAIL)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNow:
    """One node."""

    name: str
    sample: NodeSample | None = None
    """The latest; None before the first, and where `problem` says why there is none."""
    rates: NodeRates | None = None
    """Since the sample before it."""
    problem: str = ""
    age_s: float = 0.0
    """Since the last answer, or since the node was asked first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNow:
    """The job that is looked at."""

    job_id: str
    """What to type to mean it."""
    name: str
    run_id: str
    state: JobState
    speed: Throughput | None = None
    """The latest that its log tells."""
    speed_of: int | None = None
    """The node in whose log that stands."""
    slots: int | None = None
    """Of the whole job; None where that is not known, as of an elastic job."""
    history: tuple[float, ...] = ()
    """Rates that the log has told so far, the latest last."""
    network: Network | None = None
    """What NCCL goes over, as soon as the first node's log tells it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All nodes at one moment."""

    at: float
    """Seconds since the epoch."""
    cluster: str
    nodes: tuple[NodeNow, ...]
    """In the order of the cluster, or of the ranks."""
    job: JobNow | None = None
    unasked: tuple[str, ...] = ()
    """Nodes of the cluster that cannot be asked this way."""
    why_unasked: str = ""

    def processes_of(self, node: NodeNow) -> tuple[Process, ...]:
        """Return the processes of the job on a node; without a job, of all jobs of clusterkit."""
        found = node.sample.host.processes if node.sample is not None else ()
        return tuple(p for p in found if self.job is None or p.run == self.job.run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWarning:
    """Something to be said of some nodes."""

    verdict: Verdict
    """`fail`, `warn`, or `unknown` of a node that does not answer."""
    nodes: tuple[str, ...]
    text: str

    @property
    def where(self) -> str:
        """The nodes, folded."""
        return fold_set(self.nodes)


def warnings_of(snapshot: Snapshot) -> tuple[NodeWarning, ...]:
    """Return what deserves a word, alike nodes together, the worst last."""
    by_message: dict[tuple[Verdict, str], list[str]] = {}
    for node in snapshot.nodes:
        for key in _warnings(node):
            by_message.setdefault(key, []).append(node.name)
    network = snapshot.job.network if snapshot.job is not None else None
    if network is not None and network.warning and snapshot.nodes:
        by_message[Verdict.WARN, network.warning] = [snapshot.nodes[0].name]
    found = [
        NodeWarning(verdict=verdict, nodes=tuple(nodes), text=text)
        for (verdict, text), nodes in by_message.items()
    ]
    return tuple(sorted(found, key=lambda one: _ORDER.index(one.verdict)))


def _warnings(node: NodeNow) -> Iterator[tuple[Verdict, str]]:
    """Yield what deserves a word on one node."""
    if node.problem:
        yield Verdict.UNKNOWN, f"does not answer: {node.problem}"
        return
    if node.sample is None:
        yield Verdict.UNKNOWN, "has not answered yet"
        return
    if node.age_s > _STALE_S:
        yield Verdict.UNKNOWN, f"has not answered for {node.age_s:.0f} s; its figures are old"
    yield from _gpus(node.sample)
    yield from _memory(node.sample)
    if node.rates is not None:
        yield from _host(node.rates)


def _gpus(sample: NodeSample) -> Iterator[tuple[Verdict, str]]:
    if sample.gpu_problem:
        yield Verdict.FAIL, f"GPUs: {sample.gpu_problem}"
    degrees = {gpu.index: gpu.temperature_c for gpu in sample.gpus}
    for slowdown in slowdowns(sample.gpus):
        if slowdown.harmful:
            hot = degrees[slowdown.index]
            at = "" if hot is None else f", {hot:.0f} C"
            yield Verdict.FAIL, f"GPU {slowdown.index}: {slowdown.why}{at}"
    busy = {gpu.index: gpu.busy_percent for gpu in sample.gpus if gpu.busy_percent is not None}
    idle = [index for index, percent in busy.items() if percent < _IDLE_PERCENT]
    working = [index for index, percent in busy.items() if percent > _WORKING_PERCENT]
    if idle and len(working) > len(idle):
        listed = ",".join(map(str, idle))
        yield Verdict.WARN, f"GPU {listed} idle while {len(working)} others work"


def _memory(sample: NodeSample) -> Iterator[tuple[Verdict, str]]:
    host = sample.host
    if host.available_bytes < _MIN_MEMORY * host.memory_bytes:
        percent = 100 * (1 - host.available_bytes / host.memory_bytes)
        yield Verdict.WARN, f"memory {percent:.0f}% used"


def _host(rates: NodeRates) -> Iterator[tuple[Verdict, str]]:
    for limit in rates.killed_at:
        gib = limit.limit_bytes / (1 << 30)
        yield Verdict.FAIL, f"{limit.oom_kills} killed at the memory limit of {gib:.1f} GiB"
    throttled = rates.throttled_percent or 0.0
    if throttled >= THROTTLED_PERCENT:
        held = f"limit of {rates.throttled_at_cpus:.3g} CPUs"
        yield Verdict.WARN, f"{held} used up in {throttled:.0f}% of the scheduler's periods"
    if rates.waiting_percent >= IO_WAIT_PERCENT:
        yield Verdict.WARN, f"I/O wait {rates.waiting_percent:.0f}% of the CPU time"
    if rates.stolen_percent >= STEAL_PERCENT:
        yield Verdict.WARN, f"CPU steal {rates.stolen_percent:.0f}% (the virtual machine's host)"
    for traffic in rates.interfaces:
        if traffic.errors_per_s >= _BAD_PACKETS_PER_S:
            yield (
                Verdict.WARN,
                f"{traffic.name}: {traffic.errors_per_s:.0f} packets/s damaged or dropped",
            )


def document_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return all that is known; figures that are not known are null."""
    job = snapshot.job
    return {
        "at": snapshot.at,
        "cluster": snapshot.cluster,
        "job": job
        and {
            "job_id": job.job_id,
            "name": job.name,
            "state": job.state,
            "throughput": job.speed and {**asdict(job.speed), "node_rank": job.speed_of},
            "nccl_network": nccl_network.document_of(job.network),
        },
        "nodes": [_node_row(snapshot, node) for node in snapshot.nodes],
        "unasked": snapshot.unasked,
        "remarks": [
            {"verdict": one.verdict, "nodes": one.nodes, "summary": one.text}
            for one in warnings_of(snapshot)
        ],
    }


def _node_row(snapshot: Snapshot, node: NodeNow) -> dict[str, Any]:
    return {
        "node": node.name,
        "problem": node.problem or None,
        "age_s": round(node.age_s, 3),
        "host": _host_row(node.sample, node.rates) if node.sample is not None else None,
        "gpus": _gpu_rows(node.sample) if node.sample is not None else [],
        "interfaces": _link_rows(node.rates.interfaces) if node.rates is not None else [],
        "ports": _link_rows(node.rates.ports) if node.rates is not None else [],
        "processes": _process_rows(snapshot, node),
    }


def _host_row(sample: NodeSample, rates: NodeRates | None) -> dict[str, Any]:
    host = sample.host
    names = (
        "seconds", "cpu_percent", "waiting_percent", "stolen_percent",
        "throttled_percent", "throttled_at_cpus",
    )  # fmt: skip
    return {
        **picked(host, "cpus", "load", "memory_bytes", "available_bytes"),
        "swap_used_bytes": host.swap_bytes - host.swap_free_bytes,
        **{name: _rounded(getattr(rates, name)) if rates else None for name in names},
        "memory_limits": host.limits,
    }


def _gpu_rows(sample: NodeSample) -> list[dict[str, Any]]:
    limited = {one.index: one.why for one in slowdowns(sample.gpus)}
    names = (
        "index", "name", "busy_percent", "memory_used_mib", "memory_mib", "temperature_c",
        "power_w", "power_limit_w", "clock_mhz", "clock_max_mhz", "clock_reasons",
    )  # fmt: skip
    return [{**picked(gpu, *names), "slowdown": limited.get(gpu.index)} for gpu in sample.gpus]


def _process_rows(snapshot: Snapshot, node: NodeNow) -> list[dict[str, Any]]:
    used = node.rates.process_cpu_percent if node.rates is not None else {}
    names = (
        "pid", "run", "node_rank", "rank", "command", "state", "threads", "memory_bytes",
    )  # fmt: skip
    found = snapshot.processes_of(node)
    return [{**picked(one, *names), "cpu_percent": _rounded(used.get(one.pid))} for one in found]


def _link_rows(links: tuple[Traffic, ...]) -> list[dict[str, Any]]:
    return [{key: _rounded(value) for key, value in asdict(one).items()} for one in links]


def _rounded(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value
