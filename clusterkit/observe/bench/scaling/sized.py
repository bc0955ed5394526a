"""From one job to the same job at several sizes, all planned before the first is started."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from clusterkit.core.errors import Problem, UserError
from clusterkit.core.model import LaunchPlan
from clusterkit.executors import executor_for
from clusterkit.jobs.submit.request import JobRequest
from clusterkit.jobs.submit.submit import Prepared, prepare
from clusterkit.observe.bench.scaling.sizes import By, Size, chosen_by, parse_at, sizes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedJob:
    """The job at one size."""

    size: Size
    prepared: Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The job at all its sizes, from the smallest to the largest."""

    by: By
    plan: LaunchPlan
    """At its full size."""
    jobs: tuple[SizedJob, ...]


def ladder(request: JobRequest, *, by: str | None, at: str | None) -> Ladder:
    """Return the job that `request` describes at the sizes asked for.

    Raises:
        UserError: it cannot run at one of them, or they are no sizes.
    """
    _refuse(request)
    request = dataclasses.replace(request, flags={**request.flags, "after": ()})
    counts = parse_at(at) if at is not None else None
    plan = request.plan()
    unsaid = request.get("nodes") is None
    fits = counts is not None and counts[-1] <= sum(plan.slots)
    if counts and unsaid and by != By.SLOTS and (by is not None or not fits):
        by = by or By.NODES.value
        request = _with(request, nodes=counts[-1])
        plan = request.plan()
    chosen = chosen_by(by, plan)
    sizes = sizes_of(plan, chosen, counts)
    jobs = tuple(SizedJob(size=size, prepared=prepare(_at(request, size))) for size in sizes)
    with request.placing():
        executor_for(plan.cluster.kind).check_limits(jobs[-1].prepared.plan)
    return Ladder(by=chosen, plan=jobs[-1].prepared.plan, jobs=jobs)


def _at(request: JobRequest, size: Size) -> JobRequest:
    sized = _with(request, nodes=size.nodes)
    return sized if size.slots is None else _with(sized, gpus_per_node=size.slots)


def _with(request: JobRequest, **values: int) -> JobRequest:
    said = {name: str(value) for name, value in values.items()}
    return dataclasses.replace(request, flags={**request.flags, **said})


def _refuse(request: JobRequest) -> None:
    problems = []
    if request.get("array") is not None:
        hint = "measure one of its jobs: leave --array out"
        problems.append(Problem(message="--array: each size is one job", hint=hint))
    if request.get("processes") is not None:
        hint = "leave it out: --at 1,2,4 --by slots says how many ranks there are"
        problems.append(Problem(message="--processes: ranks are what is made more of", hint=hint))
    if ":" in str(request.get("nodes") or ""):
        hint = "--nodes 4: each size is measured with a fixed number"
        problems.append(Problem(message="--nodes MIN:MAX: an elastic job has no size", hint=hint))
    if problems:
        raise UserError(problems=problems)
