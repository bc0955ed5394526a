"""What is known at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from clusterkit.core.model import JobState
from clusterkit.observe.throughput import Throughput
from clusterkit.observe.vitals import NodeRates, NodeSample
from clusterkit.observe.vitals.probes.host_text import Process


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
