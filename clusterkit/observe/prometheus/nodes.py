"""What `clusterkit top` sees, as metrics for the textfile collector (docs/how-to/metrics.md).

`nodes.tsv` has a row per metric: of what it is, its name, the attribute that holds it, by what that
is multiplied, and what it means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from clusterkit.core.data import read_table
from clusterkit.observe.prometheus.jobs import add_gauge, new_registry, write_registry
from clusterkit.observe.throughput import Throughput
from clusterkit.observe.top.snapshot import JobNow, NodeNow, Snapshot
from clusterkit.observe.vitals.sample import slowdowns

_TABLE = Path(__file__).with_name("nodes.tsv")
_LABELS = {
    "node": ("node",),
    "rates": ("node",),
    "interfaces": ("node", "link"),
    "ports": ("node", "link"),
    "gpu": ("node", "gpu"),
}

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
    for row in read_table(_TABLE):
        read, times = attrgetter(row["attribute"]), float(row["times"])
        values: Values = {
            labels: value * times
            for labels, one in _all(row["of"], snapshot.nodes)
            if (value := read(one)) is not None
        }
        add_gauge(registry, row["name"], row["about"], _LABELS[row["of"]], values)
    held: Values = {
        (*labels, str(one.index), one.why): 1
        for labels, sample in _all("node", snapshot.nodes)
        for one in slowdowns(sample)
    }
    add_gauge(
        registry,
        "clusterkit_gpu_slowdown",
        "1 for each GPU whose clocks are held down, by the reason.",
        ("node", "gpu", "reason"),
        held,
    )
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


def _all(what: str, nodes: Sequence[NodeNow]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield all nodes, rates of nodes, links or GPUs, each with its labels."""
    for node in nodes:
        if what == "node" and node.sample is not None:
            yield (node.name,), node.sample
        elif what == "rates" and node.rates is not None:
            yield (node.name,), node.rates
        elif what == "gpu" and node.sample is not None:
            yield from (((node.name, str(gpu.index)), gpu) for gpu in node.sample.gpus)
        elif what in {"interfaces", "ports"} and node.rates is not None:
            yield from (((node.name, one.name), one) for one in getattr(node.rates, what))


def _throughput(job: JobNow, speed: Throughput, cluster: str) -> Values:
    """Return the rate of the whole job; that of a slot, as such, where its slots are not known."""
    rate, unit = speed.rate, str(speed.unit)
    if speed.per_slot and job.slots is not None:
        rate *= job.slots
    elif speed.per_slot:
        unit = f"{unit}_per_slot"
    return {(job.job_id, job.name, cluster, unit): rate}
