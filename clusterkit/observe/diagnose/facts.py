"""What the run folder itself knows of a failed job, as lines that rules match like any other.

Some causes print nothing: a rank that the kernel kills, a time limit, a node that goes. A fact is a
line `clusterkit fact: KEY=VALUE`; docs/how-to/diagnose.md lists the keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clusterkit.core import files, reading
from clusterkit.core.model import JobState, NodeResult
from clusterkit.core.records import count_of, counts_of, object_of, text_of, texts_of
from clusterkit.core.text.listing import some_of
from clusterkit.executors.node.failure import read_rank_failure
from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import listed
from clusterkit.jobs.logs import ranks_of
from clusterkit.jobs.state.load import Job
from clusterkit.observe.diagnose.attempt_steps import steps_of_attempts
from clusterkit.observe.diagnose.events import Fact, Source
from clusterkit.observe.diagnose.extension_locks import old_locks
from clusterkit.observe.diagnose.open_log import text_size
from clusterkit.observe.diagnose.order import Place

_SIGTERM = 143
_ENDED_FROM_OUTSIDE = frozenset({JobState.CANCELLED, JobState.TIMEOUT})
_WAITED = _ENDED_FROM_OUTSIDE | {JobState.RUNNING}
_SENT = frozenset({130, _SIGTERM, 137})
"""Exit codes of whoever is told to end, and is killed where it does not."""
_MOST_NAMED = 8
_OF_SCHEDULER = frozenset({".out", ".err"})
_MOST_OF_OTHERS = 1 << 29
"""Bytes of text of somebody else's job that are looked through."""
_SIGNALS = 64
"""Linux has so many; an exit code over 128 + that, such as 255, is no signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What is known of a job without reading its logs."""

    sources: tuple[Source, ...]
    facts: tuple[Fact, ...]
    first: Place | None
    """Where it failed first, where its launchers told."""
    notes: tuple[str, ...]
    """What there is not to be read."""
    processes: int | None = None
    """How many ranks it has at most, as its plan has it."""


def facts_of(job: Job) -> JobFacts:
    """Return what the run folder of a job says, and the logs that it has."""
    attempt = node_results.latest_attempt(job.run)
    results = node_results.read_results(job.run, attempt).nodes
    failure = node_results.first_failure(job.run, attempt)
    plan = files.read_json(job.run.plan) or {}
    sources, notes = _sources(job, results, _planned_nodes(plan))
    return JobFacts(
        sources=sources,
        facts=(*_facts(job, results, failure), *_locks(job, plan)),
        first=_first(job, failure, attempt),
        notes=notes,
        processes=_processes(plan),
    )


def _processes(plan: Mapping[str, Any]) -> int | None:
    slots = counts_of(plan, "slots")
    nodes = max(count_of(plan, "max_nodes"), len(slots))
    most = max(count_of(plan, "processes"), nodes * max(slots, default=0))
    return most or None


def _planned_nodes(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the nodes of a plan in rank order; none on Slurm, which chooses them."""
    return texts_of(plan, "node_names")


def _facts(job: Job, results: tuple[NodeResult, ...], failure: NodeResult | None) -> Iterator[Fact]:
    status = job.status
    yield _fact("state", status.state)
    if status.state is JobState.TIMEOUT and job.submission.requeue:
        yield from _attempts(job)
    if status.reason:
        yield _fact("reason", status.reason)
    if failure is not None:
        yield from _of_node(failure)
        code = failure.exit_code
        signal = code - 128
        key, value = ("signal", signal) if 0 < signal <= _SIGNALS else ("exit", code)
        asked_for = status.state is JobState.CANCELLED and code in _SENT
        if failure.lost is None and failure.unfit is None and not asked_for:
            yield _fact(key, value, failure)
        if not reading.size_of(job.run.log(failure.node_rank)):
            for line in failure.tail:
                yield Fact(text=line, node=failure.node, rank=failure.rank, time=failure.ended_at)
    for result in results:
        if result != failure:
            yield from _of_node(result)


def _attempts(job: Job) -> Iterator[Fact]:
    """Tell of the attempts of a job that has used them up, and of the steps that each made."""
    made = node_results.latest_attempt(job.run) + 1
    if made <= job.submission.requeue:
        return
    steps = steps_of_attempts(job.run.log(0))
    each = ", ".join(f"{steps.get(attempt, 0)} steps" for attempt in range(made))
    yield _fact("attempts", f"{made} of {made}, to the time limit" + (f"; {each}" if steps else ""))


def _locks(job: Job, plan: Mapping[str, Any]) -> Iterator[Fact]:
    if job.status.state not in _WAITED or plan.get("container"):
        return
    logs = [job.run.log(rank) for rank in ranks_of(job.run)]
    given = object_of(plan, "env")
    env = {name: text for name in given if (text := text_of(given, name))}
    framework = text_of(plan, "framework") or ""
    for path in old_locks(logs, env, job.submission.submitted_at, framework=framework):
        yield _fact("lock", path)


def _of_node(result: NodeResult) -> Iterator[Fact]:
    if result.reason:
        yield _fact("node-reason", result.reason, result)
    if result.lost:
        yield _fact("lost", result.lost, result)
    if result.unfit:
        yield _fact("unfit", result.unfit, result)


def _fact(key: str, value: object, of: NodeResult | None = None) -> Fact:
    text = " ".join(f"clusterkit fact: {key}={value}".split())
    if of is None:
        return Fact(text=text)
    return Fact(text=text, node=of.node, rank=of.rank, time=of.ended_at)


def _first(job: Job, failure: NodeResult | None, attempt: int) -> Place | None:
    sent = _SENT if job.status.state in _ENDED_FROM_OUTSIDE else {_SIGTERM}
    told = read_rank_failure(job.run, attempt)
    if told is not None and told.exit_code not in sent:
        return Place(node=told.node, rank=told.rank)
    if failure is not None and failure.exit_code not in sent:
        return Place(node=failure.node, rank=failure.rank)
    return None


def _sources(
    job: Job, results: tuple[NodeResult, ...], planned: tuple[str, ...]
) -> tuple[tuple[Source, ...], tuple[str, ...]]:
    names = dict(enumerate(planned)) | {r.node_rank: r.node for r in results}
    found, missing = [], []
    room = math.inf if job.run.foreign is None else _MOST_OF_OTHERS
    left_out = []
    for rank in ranks_of(job.run):
        path = job.run.log(rank)
        room -= text_size(path)
        if room < 0:
            left_out.append(path.name)
        elif reading.size_of(path):
            found.append(Source(path=path, node=names.get(rank)))
        else:
            missing.append(names.get(rank) or f"node {rank}")
    for name in sorted(listed(job.run.submitit)):
        path = job.run.submitit / name
        if path.suffix in _OF_SCHEDULER and reading.size_of(path):
            room -= text_size(path)
            found += [Source(path=path, scheduler=True)] if room >= 0 else []
    notes = []
    if left_out:
        named = some_of(left_out, _MOST_NAMED, rest="others")
        notes.append(f"too much of somebody else to be read at once: {named} of {job.run.logs}")
    if missing:
        named = some_of(missing, _MOST_NAMED, rest="others")
        notes.append(f"no output of {named}: {job.run.logs} has none")
    return tuple(found), tuple(notes)
