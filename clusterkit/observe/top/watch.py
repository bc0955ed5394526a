"""Look at nodes and at a job again and again; a node that does not answer holds up only itself."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from clusterkit.core import files
from clusterkit.core.errors import ClusterkitError
from clusterkit.core.reading import size_of
from clusterkit.core.records import count_of
from clusterkit.core.throughput import Throughput, read
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.document import name_of
from clusterkit.jobs.logs import LogReader, ranks_of
from clusterkit.jobs.nccl_network import HEAD, Network, network_of
from clusterkit.jobs.nodes import Part, Subject
from clusterkit.jobs.watch import Watch
from clusterkit.observe.top.snapshot import JobNow, NodeNow, Snapshot
from clusterkit.observe.vitals.sample import NodeRates, NodeSample, NodeVitals, ask_vitals, rates

_WAIT_S = 3.0
"""A refresh may wait so long for nodes that did answer; the first one takes a second at least."""


@dataclass(slots=True)
class _Node:
    asked_at: float
    """When it was asked first."""
    question: int | None = None
    """The number of the question to it that is still out."""
    answered_at: float | None = None
    sample: NodeSample | None = None
    rates: NodeRates | None = None
    problem: str = ""

    def fail(self, why: str) -> None:
        self.question, self.answered_at, self.problem = None, time.monotonic(), why
        self.sample = self.rates = None

    def take(self, vitals: NodeVitals) -> None:
        if not vitals.samples:
            self.fail(vitals.problem)
            return
        self.question, self.answered_at, self.problem = None, time.monotonic(), ""
        last = vitals.samples[-1]
        before = vitals.samples[0] if len(vitals.samples) > 1 else self.sample
        self.rates = rates(before, last) if before is not None else None
        self.sample = last


class Watcher:
    """Look at the nodes of a subject, refresh by refresh."""

    def __init__(self, subject: Subject) -> None:
        """Ask nobody yet."""
        self._subject = subject
        self._nodes = {node: _Node(time.monotonic()) for node in subject.order}
        self._training = Training(subject.run) if subject.run is not None else None
        self._changed = threading.Condition()
        self._failure: ClusterkitError | None = None
        self._answered = False
        self._numbers = itertools.count()

    @property
    def over(self) -> bool:
        """Whether the job that is looked at has ended."""
        return self._training is not None and self._training.over

    def close(self) -> None:
        """End what is kept open between refreshes."""
        for part in self._subject.parts:
            part.close()

    def refresh(self, *, timeout_s: float | None) -> Snapshot:
        """Ask every node that has answered its last question; return what is known then.

        Nodes that answered the last time are waited for, no longer than `timeout_s` (None: as long
        as the transports do); what others answer is in a later snapshot.

        Raises:
            RemoteError, UserError: nobody could be asked at all, for a reason that is no node's.
        """
        waited_for: list[str] = []
        with self._changed:
            for part in self._subject.parts:
                for nodes in self._free(part):
                    if timeout_s is None or not self._nodes[nodes[0]].problem:
                        waited_for += nodes
                    self._start(part, nodes)
        job: JobNow | None = self._training.look() if self._training is not None else None
        with self._changed:
            self._changed.wait_for(
                lambda: all(self._nodes[node].question is None for node in waited_for),
                timeout=timeout_s,
            )
            if self._failure is not None and not self._answered:
                raise self._failure
            return self._snapshot(job)

    def snapshots(self, every_s: float, aim: Callable[[], Subject]) -> Iterator[Snapshot]:
        """Yield a snapshot every so many seconds, until the job has ended.

        While a node does not answer, `aim` tells whom to ask: a job may have started again
        on others.

        Raises:
            RemoteError, UserError: as `refresh`, at first.
        """
        while True:
            due = time.monotonic() + every_s
            yield (now := self.refresh(timeout_s=max(every_s, _WAIT_S)))
            if self.over:
                return
            if any(node.problem for node in now.nodes):
                with suppress(ClusterkitError):  # it waits for nodes, say
                    self._turn_to(aim())
            time.sleep(max(0.0, due - time.monotonic()))

    def _turn_to(self, subject: Subject) -> None:
        """Ask the nodes of this subject from now on, where they are others."""
        if subject.order == self._subject.order:
            return
        self.close()
        with self._changed:
            self._subject = subject
            began = time.monotonic()
            self._nodes |= {node: _Node(began) for node in subject.order}

    def _free(self, part: Part) -> list[list[str]]:
        """Return the nodes to be asked now: those that do answer apart from those that do not."""
        free = [node for node in part.nodes if self._nodes[node].question is None]
        healthy = [node for node in free if not self._nodes[node].problem]
        failing = [node for node in free if self._nodes[node].problem]
        return [nodes for nodes in (healthy, failing) if nodes]

    def _start(self, part: Part, nodes: Sequence[str]) -> None:
        first = any(self._nodes[node].sample is None for node in nodes)
        number = next(self._numbers)
        for node in nodes:
            self._nodes[node].question = number
        arguments = (part, nodes, first, number)
        threading.Thread(target=self._ask, args=arguments, daemon=True).start()

    def _ask(self, part: Part, nodes: Sequence[str], first: bool, number: int) -> None:
        why = "the question was interrupted"
        try:
            ask_vitals(part.transport, nodes, once=first, on_reply=partial(self._note, number))
        except ClusterkitError as error:
            self._failure, why = error, str(error).partition("\n")[0]
        finally:
            with self._changed:
                for known in (self._nodes[node] for node in nodes):
                    if known.question == number:
                        known.fail(why)
                self._changed.notify_all()

    def _note(self, number: int, vitals: NodeVitals) -> None:
        with self._changed:
            if self._nodes[vitals.node].question != number:
                return  # it was asked before the job started again, on other nodes
            self._nodes[vitals.node].take(vitals)
            self._answered = True
            self._changed.notify_all()

    def _snapshot(self, job: JobNow | None) -> Snapshot:
        now = time.monotonic()
        return Snapshot(
            at=time.time(),
            cluster=self._subject.cluster,
            nodes=tuple(
                NodeNow(
                    name=name,
                    sample=node.sample,
                    rates=node.rates,
                    problem=node.problem,
                    age_s=now - (node.answered_at or node.asked_at),
                )
                for name, node in ((name, self._nodes[name]) for name in self._subject.order)
            ),
            job=job,
            unasked=self._subject.unasked,
            why_unasked=self._subject.why_unasked,
        )


_TAIL = 200
"""Lines of each log that are read at first."""
_TAIL_BYTES = 1 << 20
"""They may be longer than that: a progress bar may never end its line."""
_PIECES = 16
"""Of what a log has got since, the last are looked at; one has about 256 KiB at most."""
_HISTORY = 40


class Training:
    """Look at a job again and again; only what its log has got since is read."""

    def __init__(self, run: RunFolder) -> None:
        """Look at the job in `run`."""
        self._watch = Watch(run)
        self._readers: dict[int, LogReader] = {}
        self._throughputs: dict[int, Throughput] = {}
        self._history: deque[float] = deque(maxlen=_HISTORY)
        self._slots = _slots(run)
        self._network: Network | None = None
        self._size = 0

    @property
    def over(self) -> bool:
        """Whether the job has ended, or nothing more will be learnt of it."""
        return self._watch.over

    def look(self) -> JobNow:
        """Return what is known now."""
        self._watch.look()
        job = self._watch.job
        run = job.run
        for rank in ranks_of(run):
            if rank not in self._readers:
                self._readers[rank] = LogReader(run.log(rank), tail=_TAIL, within=_TAIL_BYTES)
            found = latest(self._readers[rank])
            if found is not None:
                self._throughputs[rank] = found
        self._look_for_network(run)
        first = min(self._throughputs) if self._throughputs else None
        speed = self._throughputs[first] if first is not None else None
        if speed is not None and (not self._history or self._history[-1] != speed.rate):
            self._history.append(speed.rate)
        return JobNow(
            job_id=name_of(job),
            name=job.submission.name,
            run_id=run.run_id,
            state=job.status.state,
            speed=speed,
            speed_of=first,
            slots=self._slots,
            history=tuple(self._history),
            network=self._network,
        )

    def _look_for_network(self, run: RunFolder) -> None:
        """Read the first node's log again, as long as it is short and has not told all."""
        size = size_of(run.log(0))
        known = self._network is not None and self._network.gpudirect is not None
        if not known and size != self._size:
            if self._size < HEAD:
                self._network = network_of(run)
            self._size = size


def _slots(run: RunFolder) -> int | None:
    plan = files.read_json(run.plan) or {}
    return count_of(plan, "processes") or None if plan.get("max_nodes") is None else None


def latest(reader: LogReader) -> Throughput | None:
    """Return the last speed that a log tells since it was looked at before, rather no average."""
    average = None
    for line in _backwards(reader):
        found = read(line)
        if found is not None and not found.average:
            return found
        average = average or found
    return average


def _backwards(reader: LogReader) -> Iterator[str]:
    pieces = deque(reader.pieces(), maxlen=_PIECES)
    # A progress bar may not end its line for hours; its last state may not be whole yet.
    pieces.extend(piece.rpartition("\r")[0] for piece in reader.rest())
    for piece in reversed(pieces):
        yield from reversed(piece.splitlines())
