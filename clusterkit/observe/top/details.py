"""All that is known of a node, as lines."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.observe.top.snapshot import NodeNow, Snapshot
from clusterkit.observe.top.units import GIB, percent, short, whole
from clusterkit.observe.vitals import Traffic, slowdowns
from clusterkit.observe.vitals.probes.gpu import GpuVitals
from clusterkit.observe.vitals.probes.host_text import Process

_BUSY = 5.0
"""Percent of a processor, from which on a process that is no rank has a line of its own."""


def details_of(snapshot: Snapshot, node: NodeNow) -> Iterator[str]:
    """Yield a line for each GPU, each link that carries something, and each process of the job."""
    if node.sample is None:
        return
    held = {one.index: one.why for one in slowdowns(node.sample)}
    for gpu in node.sample.gpus:
        yield _gpu(gpu, held.get(gpu.index, ""))
    host = node.sample.host
    free = host.available_bytes / GIB
    yield (
        f"host {host.cpus} CPUs, load {host.load:.1f}, "
        f"{free:.1f} of {host.memory_bytes / GIB:.1f} GiB left"
    )
    if node.rates is not None:
        for link in (*node.rates.interfaces, *node.rates.ports):
            if link.received_bytes_per_s or link.sent_bytes_per_s or link.errors_per_s:
                yield _link(link)
        if node.rates.throttled_percent is not None:
            yield (
                f"cgroup limit of {node.rates.throttled_at_cpus:.3g} CPUs, "
                f"used up in {node.rates.throttled_percent:.0f}% of the scheduler's periods"
            )
    yield from _processes(snapshot, node)


def _processes(snapshot: Snapshot, node: NodeNow) -> Iterator[str]:
    """Yield a line for each rank and for what is busy beside them; the rest together."""
    used = node.rates.process_cpu_percent if node.rates is not None else {}
    found = snapshot.processes_of(node)
    shown = [one for one in found if one.rank is not None or used.get(one.pid, 0.0) >= _BUSY]
    shown.sort(key=lambda one: (one.run, one.rank is None, one.rank or 0, -used.get(one.pid, 0.0)))
    run = ""
    for process in shown:
        if snapshot.job is None and process.run != run:
            run = process.run
            yield f"run {run}"
        yield _process(process, used.get(process.pid))
    rest = len(found) - len(shown)
    if rest:
        yield f"{rest} more process{'es' if rest > 1 else ''} of {_whose(snapshot)}, idle"


def _whose(snapshot: Snapshot) -> str:
    return "jobs" if snapshot.job is None else "the job"


def _gpu(gpu: GpuVitals, held: str) -> str:
    used = None if gpu.memory_used_mib is None else gpu.memory_used_mib / 1024
    total = None if gpu.memory_mib is None else gpu.memory_mib / 1024
    memory = "-" if used is None or total is None else f"{used:.1f}/{total:.1f} GiB"
    parts = (
        f"gpu {gpu.index}  {percent(gpu.busy_percent):>4}",
        f"{memory:>14}",
        f"{whole(gpu.temperature_c):>3} C",
        f"{whole(gpu.power_w):>4}/{whole(gpu.power_limit_w)} W",
        "" if gpu.clock_mhz is None else f"{gpu.clock_mhz:>4.0f} MHz",
        held,
    )
    return "  ".join(part for part in parts if part)


def _link(link: Traffic) -> str:
    bad = f"  {link.errors_per_s:.0f} packets/s bad" if link.errors_per_s else ""
    received, sent = short(link.received_bytes_per_s), short(link.sent_bytes_per_s)
    return f"link {link.name}  in {received}B/s  out {sent}B/s{bad}"


def _process(process: Process, used: float | None) -> str:
    who = f"rank {process.rank}" if process.rank is not None else "no rank"
    return (
        f"{who:<8}  {process.command}  pid {process.pid}  {process.state}  "
        f"{percent(used)} CPU  {process.memory_bytes / GIB:.1f} GiB  {process.threads} threads"
    )
