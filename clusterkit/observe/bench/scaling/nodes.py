"""Ask the nodes of a running job what they do, and how long the yardstick takes on them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from clusterkit.core.model import LaunchPlan
from clusterkit.executors.slurm.states import nodes_of
from clusterkit.observe.bench.scaling import yardstick
from clusterkit.observe.bench.scaling.evidence import NodeEvidence, evidence_of
from clusterkit.observe.bench.scaling.yardstick import Yardstick
from clusterkit.observe.vitals.sample import NodeSample, ask_vitals
from clusterkit.preflight.hosts import LOCALHOST
from clusterkit.transport.base import Transport
from clusterkit.transport.choose import by_shell, by_ssh, by_step
from clusterkit.transport.probe import Missing, PreflightJob, read_output
from clusterkit.transport.script import compose, new_token

_EVERY_S = 2.0
_SHARE = 0.1
"""Asking may take this share of the time: who measures is not to slow down what is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """The nodes of a job, and how to reach them."""

    transport: Transport
    nodes: tuple[str, ...]


def aim(plan: LaunchPlan, job_id: str | None) -> Aim:
    """Return the nodes of a job that runs.

    Raises:
        RemoteError: Slurm does not say which they are.
    """
    kind = plan.cluster.kind
    if kind.shares_machine:
        return Aim(transport=by_shell(), nodes=(LOCALHOST,))
    if kind.lists_hosts:
        return Aim(transport=by_ssh(plan.cluster), nodes=plan.node_names)
    return Aim(transport=by_step(job_id), nodes=nodes_of(job_id or ""))


class NodeWatch:
    """Readings of the nodes of one run, taken while it is measured."""

    def __init__(self, target: Aim) -> None:
        """Take none yet."""
        self._aim = target
        self._samples: dict[str, list[NodeSample]] = {node: [] for node in target.nodes}
        self._yardsticks: dict[str, list[Yardstick]] = {node: [] for node in target.nodes}
        self._problems: dict[str, str] = {}
        self._next_s = 0.0

    def sample(self, *, at_once: bool = False) -> None:
        """Read all nodes, if it is time to, or `at_once`.

        Raises:
            RemoteError: the transport is not there.
        """
        began = time.monotonic()
        if began < self._next_s and not at_once:
            return
        for told in ask_vitals(self._aim.transport, self._aim.nodes):
            self._samples[told.node] += told.samples
            if told.problem:
                self._problems[told.node] = told.problem
        now = time.monotonic()
        self._next_s = now + max(_EVERY_S, (now - began) / _SHARE)

    def measure(self) -> None:
        """Let all nodes compute the yardstick at once.

        Raises:
            RemoteError: the transport is not there.
        """
        job = PreflightJob(hosts=self._aim.nodes)
        compound = compose((yardstick.PROBE,), job, token=new_token())
        replies = self._aim.transport.ask(self._aim.nodes, compound, heard=lambda _: None)
        for reply in replies:
            facts = read_output(yardstick.PROBE, reply.outputs.get(yardstick.PROBE.name))
            if not isinstance(facts, Missing):
                self._yardsticks[reply.node].append(facts)

    def evidence(self, problem: str) -> tuple[NodeEvidence, ...]:
        """Return what the readings say, node by node; `problem` is of all that told nothing."""
        return tuple(
            evidence_of(
                node,
                self._samples[node],
                self._yardsticks[node],
                self._problems.get(node, problem),
            )
            for node in self._aim.nodes
        )
