"""Ask nodes what they are doing: one script a node, one round trip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clusterkit.observe.vitals.probes import amd, host, nvidia
from clusterkit.observe.vitals.sample import NodeSample, read_samples
from clusterkit.transport.base import Reply, Transport
from clusterkit.transport.probe import Missing, PreflightJob, Probe, Reach
from clusterkit.transport.script import compose, new_token

PROBES: tuple[Probe[Any], ...] = (host.PROBE, nvidia.PROBE, amd.PROBE)
"""One reading of a node: to be put beside an earlier one."""
ONCE: tuple[Probe[Any], ...] = (host.TWICE, nvidia.PROBE, amd.PROBE)
"""Two readings, a second apart, in one answer."""


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
    heard: Callable[[NodeVitals], None] = lambda _: None,
) -> tuple[NodeVitals, ...]:
    """Read every node once (with `once`, twice within a second); answers are in order.

    A node that does not answer is one with a `problem`; it holds nobody up beyond the time-out of
    the transport.

    Raises:
        RemoteError: the transport itself is not there.
    """
    job = PreflightJob(hosts=tuple(nodes))
    compound = compose(ONCE if once else PROBES, job, token=new_token())
    replies = transport.ask(nodes, compound, heard=lambda reply: heard(_read(reply)))
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
