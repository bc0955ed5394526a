"""Ask nodes what they are doing: one script per node, one round trip; and read their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterkit.core.findings import Verdict
from clusterkit.observe.vitals import host
from clusterkit.observe.vitals.host import HostVitals
from clusterkit.preflight.probes.gpu import vitals as gpu
from clusterkit.preflight.probes.gpu.vitals import GpuVitals
from clusterkit.transport.base import Reply, Transport
from clusterkit.transport.probe import Missing, Output, PreflightJob, Probe, Reach, read_output
from clusterkit.transport.script import compose, new_token

PROBES: tuple[Probe[Any], ...] = (host.PROBE, gpu.NVIDIA, gpu.AMD)
"""One reading of a node: to be compared with an earlier one."""
ONCE: tuple[Probe[Any], ...] = (host.TWICE, gpu.NVIDIA, gpu.AMD)
"""Two readings, a second apart, in one answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSample:
    """One reading of a node."""

    host: HostVitals
    gpus: tuple[GpuVitals, ...] = ()
    gpu_trouble: str = ""
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
    replies = transport.ask(nodes, compound, heard=lambda reply: on_reply(_read(reply)))
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
    troubles: list[str] = []
    for of_gpus in (gpu.NVIDIA, gpu.AMD):
        found = read_output(of_gpus, outputs.get(of_gpus.name))
        if not isinstance(found, Missing):
            gpus += found.gpus
            troubles += [found.trouble] if found.trouble else []
        elif found.verdict is not Verdict.SKIP and of_gpus.name in outputs:
            troubles.append(found.reason)
    return tuple(
        NodeSample(host=reading, gpus=tuple(gpus), gpu_trouble="; ".join(troubles))
        for reading in readings
    )
