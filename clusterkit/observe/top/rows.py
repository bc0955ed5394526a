"""Nodes as rows of figures: one each, or many folded into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.observe.top.snapshot import NodeNow, Snapshot
from clusterkit.observe.vitals import Traffic
from clusterkit.observe.vitals.probes.gpu import GpuVitals

LONGEST_NAME = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table; None is not known. Of many nodes, means unless it says otherwise."""

    name: str
    nodes: tuple[str, ...]
    trouble: bool
    """Whether something is to be said of it."""
    gpu_percent: float | None
    least_gpu_percent: float | None
    """Of the GPU that does least."""
    gpu_memory_percent: float | None
    """Of the fullest GPU."""
    hottest_c: float | None
    watts: float | None
    """Of all GPUs of a node."""
    cpu_percent: float | None
    waiting_percent: float | None
    memory_percent: float | None
    """Of the fullest node."""
    received: float | None
    sent: float | None
    """Bytes a second through all network interfaces of a node."""
    ib_received: float | None
    ib_sent: float | None
    processes: int | None
    """Of jobs, of all nodes together."""


def rows_of(
    snapshot: Snapshot, troubled: frozenset[str], *, most: int | None = None
) -> tuple[Row, ...]:
    """Return a row a node; with more than `most`, those that are well are folded into the first.

    Kept apart are nodes of which something is to be said, then those whose GPUs (or processors) do
    least: who waits for whom is seen at the ends.
    """
    nodes = snapshot.nodes
    if most is None or len(nodes) <= max(most, 1):
        return tuple(_row(snapshot, [node], troubled) for node in nodes)
    ranked = sorted(nodes, key=lambda node: (node.name not in troubled, _activity(node)))
    apart = {node.name for node in ranked[: max(most, 1) - 1]}
    alone = [_row(snapshot, [node], troubled) for node in nodes if node.name in apart]
    rest = [node for node in nodes if node.name not in apart]
    return (_row(snapshot, rest, troubled), *alone)


def _activity(node: NodeNow) -> float:
    busy = _busy(node)
    if busy:
        return min(busy)
    return node.rates.cpu_percent if node.rates is not None else 0.0


def _row(snapshot: Snapshot, nodes: Sequence[NodeNow], troubled: frozenset[str]) -> Row:
    gpus = [gpu for node in nodes for gpu in _gpus(node)]
    busy = [percent for node in nodes for percent in _busy(node)]
    known = [node for node in nodes if node.sample is not None]
    watts = [_sum(node, lambda gpu: gpu.power_w) for node in nodes]
    used = [
        1 - node.sample.host.available_bytes / node.sample.host.memory_bytes
        for node in nodes
        if node.sample is not None
    ]
    return Row(
        name=_name(nodes),
        nodes=tuple(node.name for node in nodes),
        trouble=any(node.name in troubled for node in nodes),
        gpu_percent=_mean(busy),
        least_gpu_percent=min(busy, default=None),
        gpu_memory_percent=max(
            (
                100 * gpu.memory_used_mib / gpu.memory_mib
                for gpu in gpus
                if gpu.memory_used_mib is not None and gpu.memory_mib
            ),
            default=None,
        ),
        hottest_c=max(
            (gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None), default=None
        ),
        watts=_mean([one for one in watts if one is not None]),
        cpu_percent=_mean([n.rates.cpu_percent for n in nodes if n.rates is not None]),
        waiting_percent=_mean([n.rates.waiting_percent for n in nodes if n.rates is not None]),
        memory_percent=max((100 * share for share in used), default=None),
        received=_traffic(nodes, "interfaces", lambda one: one.received_bytes_per_s),
        sent=_traffic(nodes, "interfaces", lambda one: one.sent_bytes_per_s),
        ib_received=_traffic(nodes, "ports", lambda one: one.received_bytes_per_s),
        ib_sent=_traffic(nodes, "ports", lambda one: one.sent_bytes_per_s),
        processes=sum(len(snapshot.processes_of(node)) for node in nodes) if known else None,
    )


def _name(nodes: Sequence[NodeNow]) -> str:
    if len(nodes) == 1:
        return nodes[0].name
    folded = fold_set(node.name for node in nodes)
    return folded if len(folded) <= LONGEST_NAME else f"{len(nodes)} other nodes"


def _gpus(node: NodeNow) -> tuple[GpuVitals, ...]:
    return node.sample.gpus if node.sample is not None else ()


def _busy(node: NodeNow) -> list[float]:
    return [gpu.busy_percent for gpu in _gpus(node) if gpu.busy_percent is not None]


def _sum(node: NodeNow, of: Callable[[GpuVitals], float | None]) -> float | None:
    said = [value for gpu in _gpus(node) if (value := of(gpu)) is not None]
    return sum(said) if said else None


def _traffic(nodes: Sequence[NodeNow], kind: str, of: Callable[[Traffic], float]) -> float | None:
    of_nodes = []
    for node in nodes:
        if node.rates is None:
            continue
        links = node.rates.ports if kind == "ports" else node.rates.interfaces
        if links:
            of_nodes.append(sum(of(link) for link in links))
    return _mean(of_nodes)


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None
