"""What `clusterkit top` sees, as metrics for the textfile collector (docs/how-to/metrics.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from clusterkit.observe.prometheus.jobs import add_gauge, new_registry, write_registry
from clusterkit.observe.throughput import Throughput
from clusterkit.observe.top.snapshot import JobNow, NodeNow, Snapshot
from clusterkit.observe.vitals.rates import NodeRates, slowdowns
from clusterkit.observe.vitals.sample import NodeSample
from clusterkit.preflight.probes.gpu.vitals import GpuVitals

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_MIB = 1 << 20

Values = dict[tuple[str, ...], float]


def write_nodes(path: Path, snapshot: Snapshot) -> None:
    """Write what nodes and their GPUs do, and how fast the job trains.

    Args:
        path: A file named `*.prom`.
        snapshot: What `clusterkit top` has seen.
    """
    registry = new_registry()
    up: Values = {(node.name,): float(node.sample is not None) for node in snapshot.nodes}
    add_gauge(registry, "clusterkit_node_up", "1 where a node answers, else 0.", ("node",), up)
    _add_hosts(registry, snapshot)
    _add_links(registry, snapshot)
    _add_gpus(registry, snapshot)
    job = snapshot.job
    if job is not None and job.speed is not None:
        add_gauge(
            registry,
            "clusterkit_job_throughput",
            "What the log of a job tells of its speed, in units a second.",
            ("job_id", "job_name", "cluster", "unit"),
            _throughput(job, job.speed, snapshot.cluster),
        )
    stamp = "When `clusterkit top` last looked."
    add_gauge(registry, "clusterkit_top_timestamp_seconds", stamp, (), {(): snapshot.at})
    write_registry(path, registry)


def _throughput(job: JobNow, speed: Throughput, cluster: str) -> Values:
    """Return the rate of the whole job; that of a slot, as such, where its slots are not known."""
    rate, unit = speed.rate, str(speed.unit)
    if speed.per_slot and job.slots is not None:
        rate *= job.slots
    elif speed.per_slot:
        unit = f"{unit}_per_slot"
    return {(job.job_id, job.name, cluster, unit): rate}


def _add_hosts(registry: CollectorRegistry, snapshot: Snapshot) -> None:
    for name, about, of in _OF_SAMPLES:
        values: Values = {(n.name,): of(n.sample) for n in snapshot.nodes if n.sample is not None}
        add_gauge(registry, name, about, ("node",), values)
    for name, about, share in _OF_RATES:
        shares: Values = {
            (node.name,): value / 100
            for node, rates in _rates(snapshot)
            if (value := share(rates)) is not None
        }
        add_gauge(registry, name, about, ("node",), shares)


def _add_links(registry: CollectorRegistry, snapshot: Snapshot) -> None:
    for name, about, of in _OF_LINKS:
        values: Values = {
            (node.name, link): value
            for node, rates in _rates(snapshot)
            for link, value in of(rates).items()
        }
        add_gauge(registry, name, about, ("node", "link"), values)


def _add_gpus(registry: CollectorRegistry, snapshot: Snapshot) -> None:
    samples = [(node.name, node.sample) for node in snapshot.nodes if node.sample is not None]
    for name, about, of in _OF_GPUS:
        values: Values = {
            (node, str(gpu.index)): value
            for node, sample in samples
            for gpu in sample.gpus
            if (value := of(gpu)) is not None
        }
        add_gauge(registry, name, about, ("node", "gpu"), values)
    add_gauge(
        registry,
        "clusterkit_gpu_slowdown",
        "1 for each GPU whose clocks are held down, by the reason.",
        ("node", "gpu", "reason"),
        {
            (node, str(held.index), held.why): 1
            for node, sample in samples
            for held in slowdowns(sample)
        },
    )


def _rates(snapshot: Snapshot) -> list[tuple[NodeNow, NodeRates]]:
    return [(node, node.rates) for node in snapshot.nodes if node.rates is not None]


def _times(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor


_OF_SAMPLES: tuple[tuple[str, str, Callable[[NodeSample], float]], ...] = (
    ("clusterkit_node_memory_bytes", "Memory there is.", lambda s: s.host.memory_bytes),
    (
        "clusterkit_node_memory_available_bytes",
        "Memory that new processes can have.",
        lambda s: s.host.available_bytes,
    ),
)
_OF_RATES: tuple[tuple[str, str, Callable[[NodeRates], float | None]], ...] = (
    ("clusterkit_node_cpu_ratio", "Share of CPU time in use.", lambda r: r.cpu_percent),
    (
        "clusterkit_node_cpu_waiting_ratio",
        "Share of CPU time that waits for disks.",
        lambda r: r.waiting_percent,
    ),
    (
        "clusterkit_node_cpu_throttled_ratio",
        "Share of the scheduler's periods in which a cgroup of the job used up its CPU limit.",
        lambda r: r.throttled_percent,
    ),
)
_OF_LINKS: tuple[tuple[str, str, Callable[[NodeRates], Mapping[str, float]]], ...] = (
    (
        "clusterkit_node_network_receive_bytes_per_second",
        "What comes in through a network interface.",
        lambda r: {one.name: one.received_bytes_per_s for one in r.interfaces},
    ),
    (
        "clusterkit_node_network_transmit_bytes_per_second",
        "What goes out through a network interface.",
        lambda r: {one.name: one.sent_bytes_per_s for one in r.interfaces},
    ),
    (
        "clusterkit_node_infiniband_receive_bytes_per_second",
        "What comes in through an RDMA port.",
        lambda r: {one.name: one.received_bytes_per_s for one in r.ports},
    ),
    (
        "clusterkit_node_infiniband_transmit_bytes_per_second",
        "What goes out through an RDMA port.",
        lambda r: {one.name: one.sent_bytes_per_s for one in r.ports},
    ),
)
_OF_GPUS: tuple[tuple[str, str, Callable[[GpuVitals], float | None]], ...] = (
    (
        "clusterkit_gpu_utilization_ratio",
        "Share of the time in use.",
        lambda g: _times(g.busy_percent, 0.01),
    ),
    (
        "clusterkit_gpu_memory_used_bytes",
        "Memory in use.",
        lambda g: _times(g.memory_used_mib, _MIB),
    ),
    ("clusterkit_gpu_memory_bytes", "Memory there is.", lambda g: _times(g.memory_mib, _MIB)),
    ("clusterkit_gpu_temperature_celsius", "Temperature.", lambda g: g.temperature_c),
    ("clusterkit_gpu_power_watts", "Power drawn.", lambda g: g.power_w),
    ("clusterkit_gpu_power_limit_watts", "Power that it may draw.", lambda g: g.power_limit_w),
)
