"""A snapshot for programs: what `clusterkit top --json` prints."""

from __future__ import annotations

from typing import Any

from clusterkit.observe.top.snapshot import JobNow, NodeNow, Snapshot, warnings_of
from clusterkit.observe.vitals.rates import NodeRates, Traffic, slowdowns
from clusterkit.observe.vitals.sample import NodeSample


def document_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return all that is known; figures that are not known are null."""
    return {
        "at": snapshot.at,
        "cluster": snapshot.cluster,
        "job": _job(snapshot.job) if snapshot.job is not None else None,
        "nodes": [_node(snapshot, node) for node in snapshot.nodes],
        "unasked": snapshot.unasked,
        "remarks": [
            {"verdict": one.verdict, "nodes": one.nodes, "summary": one.text}
            for one in warnings_of(snapshot)
        ],
    }


def _job(job: JobNow) -> dict[str, Any]:
    speed = job.speed
    told = {
        "rate": speed.rate,
        "unit": speed.unit,
        "step": speed.step,
        "average": speed.average,
        "per_slot": speed.per_slot,
        "node_rank": job.speed_of,
    } if speed is not None else None  # fmt: skip
    return {"job_id": job.job_id, "name": job.name, "state": job.state, "throughput": told}


def _node(snapshot: Snapshot, node: NodeNow) -> dict[str, Any]:
    return {
        "node": node.name,
        "problem": node.problem or None,
        "age_s": round(node.age_s, 3),
        "host": _host(node.sample, node.rates) if node.sample is not None else None,
        "gpus": _gpus(node.sample) if node.sample is not None else [],
        "interfaces": _links(node.rates.interfaces) if node.rates is not None else [],
        "ports": _links(node.rates.ports) if node.rates is not None else [],
        "processes": _processes(snapshot, node),
    }


def _host(sample: NodeSample, rates: NodeRates | None) -> dict[str, Any]:
    host = sample.host
    names = (
        "seconds", "cpu_percent", "waiting_percent", "stolen_percent",
        "throttled_percent", "throttled_at_cpus",
    )  # fmt: skip
    return {
        "cpus": host.cpus,
        "load": host.load,
        "memory_bytes": host.memory_bytes,
        "available_bytes": host.available_bytes,
        "swap_used_bytes": host.swap_bytes - host.swap_free_bytes,
        **{name: _rounded(getattr(rates, name)) if rates else None for name in names},
        "memory_limits": host.limits,
    }


def _gpus(sample: NodeSample) -> list[dict[str, Any]]:
    held = {one.index: one.why for one in slowdowns(sample)}
    names = (
        "index", "name", "busy_percent", "memory_used_mib", "memory_mib", "temperature_c",
        "power_w", "power_limit_w", "clock_mhz", "clock_max_mhz", "clock_reasons",
    )  # fmt: skip
    return [
        {**{name: getattr(gpu, name) for name in names}, "slowdown": held.get(gpu.index)}
        for gpu in sample.gpus
    ]


def _processes(snapshot: Snapshot, node: NodeNow) -> list[dict[str, Any]]:
    used = node.rates.process_cpu_percent if node.rates is not None else {}
    names = (
        "pid", "run", "node_rank", "rank", "command", "state", "threads", "memory_bytes",
    )  # fmt: skip
    return [
        {**{name: getattr(one, name) for name in names}, "cpu_percent": _rounded(used.get(one.pid))}
        for one in snapshot.processes_of(node)
    ]


def _links(links: tuple[Traffic, ...]) -> list[dict[str, Any]]:
    names = ("received_bytes_per_s", "sent_bytes_per_s", "errors_per_s")
    return [
        {"name": link.name, **{name: _rounded(getattr(link, name)) for name in names}}
        for link in links
    ]


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 2)
