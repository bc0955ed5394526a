"""What the nodes of a run did while it was measured: they are asked, and their readings compared.

With a CPU microbenchmark (programs/probes/cpu_microbenchmark.sh): a fixed small computation, by
the same program on every node. Resolution: 10 ms, that of /proc/uptime.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusterkit.core.data import read_template
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import LaunchPlan
from clusterkit.core.untrusted import real
from clusterkit.jobs.nodes import Part, of_plan
from clusterkit.observe.vitals.sample import NodeRates, NodeSample, ask_vitals, rates, slowdowns
from clusterkit.preflight.probes.gpu.vitals import GpuVitals
from clusterkit.preflight.probes.snippets import read_pairs, text_of
from clusterkit.transport.probe import Missing, PreflightJob, Probe, Unparsed, read_output
from clusterkit.transport.script import compose, new_token

_IP_OVER_IB = "ib"
"""How the kernel names such interfaces: what goes through them, the RDMA port counts as well."""
ROUNDS = 2
_EVERY_S = 2.0
_SHARE = 0.1
"""Asking may take this share of the time: who measures is not to slow down what is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTime:
    """How long the microbenchmark took."""

    program: str
    """The file of the awk that did it."""
    seconds: tuple[float, ...]
    """Wall-clock time of each round."""


def _parse(text: str) -> CpuTime:
    pairs = read_pairs(text)
    seconds = []
    for number in range(1, ROUNDS + 1):
        began, ended = map(real, text_of(pairs, f"round{number}").split())
        if ended < began:
            raise Unparsed(f"round {number} ended before it began")
        seconds.append(round(ended - began, 3))
    return CpuTime(program=text_of(pairs, "program"), seconds=tuple(seconds))


MICROBENCHMARK = Probe(
    name="cpu-microbenchmark",
    command=lambda _: read_template("programs/probes/cpu_microbenchmark.sh"),
    parse=_parse,
    timeout_s=60.0,
)


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
    """The CPU microbenchmark, at its fastest."""
    yardstick_program: str = ""
    cpus: int | None = None
    load: float | None = None
    """Processes that run or want to, the most of all readings."""
    cpu_percent: float | None = None
    """Of all CPUs, how busy they were."""
    waiting_percent: float | None = None
    """I/O wait: likewise, idle while a disk was read or written."""
    stolen_percent: float | None = None
    """CPU steal: likewise, kept by the hypervisor for others."""
    throttled_percent: float | None = None
    """Share of the time in which a cgroup of the job had used up its CPU limit."""
    throttled_at_cpus: float | None = None
    """That limit, in CPUs."""
    bytes_per_s: float | None = None
    """Sent or received over all networks, whichever is more."""
    gpus: tuple[GpuEvidence, ...] = ()
    problem: str = ""
    """Why the node told nothing."""


def evidence_of(
    node: str,
    samples: Sequence[NodeSample],
    cpu_times: Sequence[CpuTime] = (),
    problem: str = "",
) -> NodeEvidence:
    """Return what readings of a node say together, in the order in which they were taken."""
    over = rates(samples[0], samples[-1]) if len(samples) > 1 else None
    seconds = [second for one in cpu_times for second in one.seconds]
    return NodeEvidence(
        node=node,
        yardstick_s=min(seconds, default=None),
        yardstick_program=cpu_times[0].program if cpu_times else "",
        cpus=samples[-1].host.cpus if samples else None,
        load=max((one.host.load for one in samples), default=None),
        cpu_percent=over.cpu_percent if over else None,
        waiting_percent=over.waiting_percent if over else None,
        stolen_percent=over.stolen_percent if over else None,
        throttled_percent=over.throttled_percent if over else None,
        throttled_at_cpus=over.throttled_at_cpus if over else None,
        bytes_per_s=_traffic(over) if over else None,
        gpus=_gpus(samples),
        problem="" if samples or cpu_times else problem,
    )


def _traffic(over: NodeRates) -> float:
    """Return bytes per second; the greater direction, as links carry both at once."""
    interfaces = over.interfaces
    if over.ports:
        interfaces = tuple(one for one in interfaces if not one.name.startswith(_IP_OVER_IB))
    links = (*interfaces, *over.ports)
    return max(
        sum(one.received_bytes_per_s for one in links), sum(one.sent_bytes_per_s for one in links)
    )


def _gpus(samples: Sequence[NodeSample]) -> tuple[GpuEvidence, ...]:
    readings: dict[int, list[GpuVitals]] = {}
    limits: dict[int, Counter[str]] = {}
    for sample in samples:
        for gpu in sample.gpus:
            readings.setdefault(gpu.index, []).append(gpu)
        for slow in slowdowns(sample.gpus):
            if slow.harmful:
                limits.setdefault(slow.index, Counter())[slow.why] += 1
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
            slowdowns=tuple(limits.get(index, ())),
        )
        for index, of_gpu in sorted(readings.items())
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


class NodeWatch:
    """The nodes of a run, as long as they can be asked; that they cannot ends no measurement."""

    def __init__(self, plan: LaunchPlan, job_id: str | None) -> None:
        """Ask nobody yet."""
        self._plan, self._job_id = plan, job_id
        self._part: Part | None = None
        self._samples: dict[str, list[NodeSample]] = defaultdict(list)
        self._cpu_times: dict[str, list[CpuTime]] = defaultdict(list)
        self._problems: dict[str, str] = {}
        self._problem = ""
        self._next_s = 0.0

    def sample(self) -> bool:
        """Read the nodes, if it is time to; the first time, after the microbenchmark.

        Return whether it was.
        """
        if self._problem or time.monotonic() < self._next_s:
            return False
        first = self._part is None
        try:
            if self._part is None:
                self._part = of_plan(self._plan, self._job_id)
                self._measure(self._part)
            self._read(self._part)
        except (RemoteError, UserError) as error:
            self._problem = str(error)
        return first

    def finish(self) -> None:
        """Read the nodes once more, then the microbenchmark, as long as the job runs."""
        if self._problem or self._part is None:
            return
        try:
            self._read(self._part)
            self._measure(self._part)
        except (RemoteError, UserError) as error:
            self._problem = str(error)

    def close(self) -> None:
        """End what is kept open between readings."""
        if self._part is not None:
            self._part.close()

    def evidence(self) -> tuple[NodeEvidence, ...]:
        """Return what the readings say, node by node."""
        if self._part is None and not self._problem:
            return ()
        nodes = self._part.nodes if self._part is not None else self._plan.node_names
        return tuple(
            evidence_of(
                node,
                self._samples[node],
                self._cpu_times[node],
                self._problems.get(node, self._problem),
            )
            for node in nodes or ("all nodes",)
        )

    def _read(self, part: Part) -> None:
        began = time.monotonic()
        for reply in ask_vitals(part.transport, part.nodes):
            self._samples[reply.node] += reply.samples
            if reply.problem:
                self._problems[reply.node] = reply.problem
        now = time.monotonic()
        self._next_s = now + max(_EVERY_S, (now - began) / _SHARE)

    def _measure(self, part: Part) -> None:
        """Let all nodes compute the microbenchmark at once."""
        compound = compose((MICROBENCHMARK,), PreflightJob(hosts=part.nodes), token=new_token())
        for reply in part.transport.ask(part.nodes, compound, on_reply=lambda _: None):
            found = read_output(MICROBENCHMARK, reply.outputs.get(MICROBENCHMARK.name))
            if not isinstance(found, Missing):
                self._cpu_times[reply.node].append(found)
