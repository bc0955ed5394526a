"""What the nodes of a run did while it was measured, out of the readings taken of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from clusterkit.observe.bench.scaling.averages import mean, median
from clusterkit.observe.bench.scaling.yardstick import Yardstick
from clusterkit.observe.vitals.rates import NodeRates, rates, slowdowns
from clusterkit.observe.vitals.sample import NodeSample
from clusterkit.preflight.probes.gpu.vitals import GpuVitals

_IP_OVER_IB = "ib"
"""How the kernel names such interfaces: what goes through them, the RDMA port counts as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvidence:
    """One GPU over all readings; None is "the driver does not say"."""

    index: int
    busy_percent: float | None
    power_w: float | None
    clock_mhz: float | None
    """The median."""
    clock_max_mhz: float | None
    temperature_c: float | None
    """The highest."""
    slowdowns: tuple[str, ...] = ()
    """Why its clocks were held down in a reading, where that is harm and no power cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvidence:
    """One node while a run was measured; None where it was not told."""

    node: str
    yardstick_s: float | None = None
    """The fixed computation, at its fastest."""
    yardstick_program: str = ""
    cpus: int | None = None
    load: float | None = None
    """Processes that run or want to, the most of all readings."""
    cpu_percent: float | None = None
    """Of all processors, how busy they were."""
    waiting_percent: float | None = None
    """Likewise, idle while a disk was read or written."""
    stolen_percent: float | None = None
    """Likewise, kept by the hypervisor for others."""
    throttled_percent: float | None = None
    """Share of the time in which a cgroup of the job had used up its CPU limit."""
    throttled_at_cpus: float | None = None
    """That limit, in processors."""
    bytes_per_s: float | None = None
    """Sent or received over all networks, whichever is more."""
    gpus: tuple[GpuEvidence, ...] = ()
    problem: str = ""
    """Why the node told nothing."""


def evidence_of(
    node: str,
    samples: Sequence[NodeSample],
    yardsticks: Sequence[Yardstick] = (),
    problem: str = "",
) -> NodeEvidence:
    """Return what readings of a node say together, in the order in which they were taken."""
    over = rates(samples[0], samples[-1]) if len(samples) > 1 else None
    seconds = [second for one in yardsticks for second in one.seconds]
    return NodeEvidence(
        node=node,
        yardstick_s=min(seconds, default=None),
        yardstick_program=yardsticks[0].program if yardsticks else "",
        cpus=samples[-1].host.cpus if samples else None,
        load=max((one.host.load for one in samples), default=None),
        cpu_percent=over.cpu_percent if over else None,
        waiting_percent=over.waiting_percent if over else None,
        stolen_percent=over.stolen_percent if over else None,
        throttled_percent=over.throttled_percent if over else None,
        throttled_at_cpus=over.throttled_at_cpus if over else None,
        bytes_per_s=_traffic(over) if over else None,
        gpus=_gpus(samples),
        problem="" if samples or yardsticks else problem,
    )


def _traffic(over: NodeRates) -> float:
    """Return bytes a second; the greater direction, as links carry both at once."""
    interfaces = over.interfaces
    if over.ports:
        interfaces = tuple(one for one in interfaces if not one.name.startswith(_IP_OVER_IB))
    links = (*interfaces, *over.ports)
    return max(
        sum(one.received_bytes_per_s for one in links), sum(one.sent_bytes_per_s for one in links)
    )


def _gpus(samples: Sequence[NodeSample]) -> tuple[GpuEvidence, ...]:
    readings: dict[int, list[GpuVitals]] = {}
    held: dict[int, Counter[str]] = {}
    for sample in samples:
        for gpu in sample.gpus:
            readings.setdefault(gpu.index, []).append(gpu)
        for slow in slowdowns(sample):
            if slow.harmful:
                held.setdefault(slow.index, Counter())[slow.why] += 1
    return tuple(
        GpuEvidence(
            index=index,
            busy_percent=mean(gpu.busy_percent for gpu in of_gpu),
            power_w=mean(gpu.power_w for gpu in of_gpu),
            clock_mhz=median(gpu.clock_mhz for gpu in of_gpu),
            clock_max_mhz=of_gpu[-1].clock_max_mhz,
            temperature_c=max(
                (t for g in of_gpu if (t := g.temperature_c) is not None), default=None
            ),
            slowdowns=tuple(held.get(index, ())),
        )
        for index, of_gpu in sorted(readings.items())
    )
