"""What jobs have cost: slots held, and time that trained against time that was lost.

All of it is read from run folders: how each attempt of each node ended, the plan, and the steps
that the output tells. A slot is a GPU, or a CPU process where there are none. Clocks of nodes
differ, so how long an attempt took is what its slowest node says by its own clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterkit.core import files, reading
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterSpec
from clusterkit.core.records import counts_of, object_of, picked, text_of
from clusterkit.core.throughput import step_of
from clusterkit.estimate.machines.instances import instance_named
from clusterkit.executors.run import attempts, hangs, node_results
from clusterkit.executors.run.node_results import Results
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.logs import LogReader
from clusterkit.jobs.state.load import Job
from clusterkit.observe.diagnose.hits import RESTART

_MOST_READ = 64 << 20
"""Characters of the output of the first node in which steps are looked for."""
_MOST_NODES = 64
"""Nodes of which samples are read."""
_MOST_SAMPLES = 1 << 20
_HOUR_S = 3600.0
_HIGHEST_PRICE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptUsage:
    """One start of a job that has ended."""

    attempt: int
    nodes: int
    slots: int
    """That were held, those of spare nodes among them where a scheduler gives them."""
    before_s: float
    """How long it was waited for, since the submission or the end of the attempt before."""
    elapsed_s: float
    first_step: int | None
    last_step: int | None
    recomputed: int
    """Steps that the attempt before had taken already."""
    recomputed_s: float
    busy: float | None
    """How busy its GPUs were in the mean, from 0 to 1, where nodes have kept samples of them."""

    @property
    def slot_hours(self) -> float:
        """What it held."""
        return self.slots * self.elapsed_s / _HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a job has cost so far."""

    attempts: tuple[AttemptUsage, ...]
    price: float | None
    """Of a slot for an hour; None where no price is known."""
    hangs: int = 0
    """Attempts in which it made no progress, also where it went on later."""

    @property
    def restarts(self) -> int:
        """Attempts after the first, of those that have ended."""
        return max(0, len(self.attempts) - 1)

    @property
    def gpu_hours(self) -> float:
        """Slots times hours of all attempts."""
        return sum(one.slot_hours for one in self.attempts)

    @property
    def gpu_hours_lost(self) -> float:
        """Those in which steps were computed again."""
        return sum(one.slots * one.recomputed_s / _HOUR_S for one in self.attempts)

    @property
    def queue_s(self) -> float:
        """From the submission to the first start."""
        return sum(one.before_s for one in self.attempts[:1])

    @property
    def restart_s(self) -> float:
        """From the end of each attempt to the start of the next."""
        return sum(one.before_s for one in self.attempts[1:])

    @property
    def recomputed_s(self) -> float:
        """In which steps were computed again."""
        return sum(one.recomputed_s for one in self.attempts)

    @property
    def training_s(self) -> float:
        """What is left of the time in which it ran; it holds the start of the script."""
        return sum(one.elapsed_s for one in self.attempts) - self.recomputed_s

    @property
    def goodput(self) -> float | None:
        """The share of all time since the submission in which it trained."""
        return share(self.training_s, self.queue_s + self.restart_s + self.recomputed_s)

    @property
    def busy(self) -> float | None:
        """How busy its GPUs were in the mean, from 0 to 1; each attempt counts by its hours."""
        known = [(one.slot_hours, one.busy) for one in self.attempts if one.busy is not None]
        hours = sum(held for held, _ in known)
        return sum(held * busy for held, busy in known) / hours if hours else None

    @property
    def cost(self) -> float | None:
        """What its slots cost, as far as a price is known."""
        return None if self.price is None else self.price * self.gpu_hours


def share(good: float, lost: float) -> float | None:
    """Return which part of all is good; None of nothing."""
    return good / (good + lost) if good + lost > 0 else None


def usage_of(job: Job, cluster: ClusterSpec | None = None) -> Usage:
    """Return what a job has cost; `cluster` is how its cluster is configured now."""
    plan = files.read_json(job.run.plan) or {}
    ended = node_results.read_attempts(job.run)
    steps = _steps(job.run) if len(ended) > 1 else {}
    found: list[AttemptUsage] = []
    end = job.submission.submitted_at
    for results in ended:
        elapsed_s, began = _when(results)
        before_s = max(0.0, began - end)
        found.append(_attempt(job, plan, results, steps, found, (before_s, elapsed_s)))
        end = max(end, began + elapsed_s)
    last = node_results.latest_attempt(job.run)
    numbers = {last, *(one.attempt for one in found)}
    hung = sum(hangs.read_hang(job.run, number) is not None for number in numbers)
    return Usage(attempts=tuple(found), price=_price(plan, cluster), hangs=hung)


def _attempt(
    job: Job,
    plan: Mapping[str, Any],
    results: Results,
    steps: Mapping[int, tuple[int, int]],
    before: Sequence[AttemptUsage],
    times: tuple[float, float],
) -> AttemptUsage:
    before_s, elapsed_s = times
    first, last = steps.get(results.attempt, (None, None))
    told = attempts.last_step(results.nodes)
    last = max((step for step in (last, told) if step is not None), default=None)
    reached = max((one.last_step for one in before if one.last_step is not None), default=None)
    again = 0
    if reached is not None and first is not None and last is not None:
        again = max(0, min(reached, last) - first + 1)
    taken = last - first + 1 if first is not None and last is not None and last >= first else 0
    nodes = results.of or len(results.nodes)
    return AttemptUsage(
        attempt=results.attempt,
        nodes=nodes,
        slots=_slots(job, plan, nodes),
        before_s=before_s,
        elapsed_s=elapsed_s,
        first_step=first,
        last_step=last,
        recomputed=again,
        recomputed_s=elapsed_s * again / taken if taken else 0.0,
        busy=_busy(job.run, results),
    )


def _busy(run: RunFolder, results: Results) -> float | None:
    """Return how busy the GPUs of an attempt were, by the samples of some of its nodes."""
    known: list[float] = []
    for node in results.nodes[:_MOST_NODES]:
        text = reading.read_end(run.samples(node.node_rank, results.attempt), _MOST_SAMPLES)
        for line in text.splitlines():
            busy = object_of(files.parse_json(line) or {}, "busy").values()
            known += (one for one in busy if isinstance(one, int | float) and 0 <= one <= 100)
    return sum(known) / len(known) / 100 if known else None


def _when(results: Results) -> tuple[float, float]:
    """Return how long an attempt took, and when it began."""
    spans = [
        (max(0.0, one.ended_at - one.started_at), one.started_at)
        for one in results.nodes
        if one.lost is None or one.ended_at > one.started_at
    ] or [(0.0, one.started_at) for one in results.nodes]
    return max(span for span, _ in spans), min(began for _, began in spans)


def _slots(job: Job, plan: Mapping[str, Any], nodes: int) -> int:
    known = counts_of(plan, "slots")
    each = max(known, default=1)
    spares = job.submission.spares if job.submission.kind.scheduled else 0
    return sum(known[:nodes]) + each * (max(0, nodes - len(known)) + spares)


def _price(plan: Mapping[str, Any], cluster: ClusterSpec | None) -> float | None:
    """Return the price of a slot for an hour: as configured now, as it was, of its instances."""
    then = object_of(plan, "cluster")
    for price in (cluster.price if cluster is not None else None, then.get("price")):
        if isinstance(price, int | float) and 0 < price <= _HIGHEST_PRICE:
            return float(price)
    try:
        return instance_named(text_of(then, "instance_type") or "").per_gpu
    except UserError:
        return None


def _steps(run: RunFolder) -> dict[int, tuple[int, int]]:
    """Return the first and the last step of each attempt, as the output of the first node tells."""
    found: dict[int, tuple[int, int]] = {}
    attempt, room = 0, _MOST_READ
    for piece in LogReader(run.log(0)).pieces():
        for line in piece.splitlines():
            mark = RESTART.match(line)
            if mark is not None:
                attempt = int(mark["attempt"])
            step = step_of(line) if mark is None else None
            if step is not None:
                first, last = found.get(attempt, (step, step))
                found[attempt] = min(first, step), max(last, step)
        room -= len(piece)
        if room < 0:
            break
    return found


def document_of(usage: Usage) -> dict[str, Any]:
    """Return what `--json` tells of the cost of a job, or of several together."""
    names = (
        "gpu_hours", "gpu_hours_lost", "training_s", "queue_s", "restart_s", "recomputed_s",
        "restarts", "hangs", "goodput", "busy", "price", "cost", "attempts",
    )  # fmt: skip
    return picked(usage, *names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """What some jobs have cost together."""

    name: str
    jobs: int
    gpu_hours: float
    gpu_hours_lost: float
    training_s: float
    queue_s: float
    restart_s: float
    recomputed_s: float
    restarts: int
    hangs: int
    cost: float | None
    """Of those jobs for which a price is known; None where that is none."""
    unpriced: int
    """Jobs that held slots, and of which no price is known."""

    @property
    def goodput(self) -> float | None:
        """The share of all their time in which they trained."""
        return share(self.training_s, self.queue_s + self.restart_s + self.recomputed_s)


def total_of(name: str, usages: Iterable[Usage]) -> Total:
    """Return the sum of some jobs."""
    known = tuple(usages)
    costs = [one.cost for one in known if one.cost is not None]
    return Total(
        name=name,
        jobs=len(known),
        gpu_hours=sum(one.gpu_hours for one in known),
        gpu_hours_lost=sum(one.gpu_hours_lost for one in known),
        training_s=sum(one.training_s for one in known),
        queue_s=sum(one.queue_s for one in known),
        restart_s=sum(one.restart_s for one in known),
        recomputed_s=sum(one.recomputed_s for one in known),
        restarts=sum(one.restarts for one in known),
        hangs=sum(one.hangs for one in known),
        cost=sum(costs) if costs else None,
        unpriced=sum(one.price is None and one.gpu_hours > 0 for one in known),
    )
