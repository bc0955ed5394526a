"""One job at several sizes, nodes or slots, all planned before the first is started."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from enum import StrEnum

from clusterkit.core.errors import Problem, UserError, choices_hint
from clusterkit.core.model import LaunchPlan
from clusterkit.executors import executor_for
from clusterkit.jobs.submit.request import JobRequest
from clusterkit.jobs.submit.submit import Prepared, prepare


class By(StrEnum):
    """What is made more of."""

    NODES = "nodes"
    SLOTS = "slots"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of the job."""

    count: int
    """Of nodes or slots, whichever is made more of."""
    nodes: int
    slots: int | None = None
    """Of each node; None for what the job says of them."""


def chosen_by(given: str | None, plan: LaunchPlan) -> By:
    """Return what is made more of: nodes, unless the job has only one.

    Raises:
        UserError: it is neither of the two.
    """
    if given is None:
        return By.NODES if plan.nodes > 1 else By.SLOTS
    try:
        return By(given)
    except ValueError:
        raise UserError(f"--by {given}: unknown", hint=choices_hint(given, By)) from None


def parse_at(text: str) -> tuple[int, ...]:
    """Return the numbers of `--at 1,2,4`, each once and in order.

    Raises:
        UserError: they are none.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[1-9]\d{0,6}", part) for part in parts):
        raise UserError(f"--at {text!r}: whole numbers from 1 on", hint="--at 1,2,4")
    return tuple(sorted({int(part) for part in parts}))


def doubling(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4 ... below `most`, and `most`."""
    return (*(1 << power for power in range(most.bit_length()) if 1 << power < most), most)


def sizes_of(plan: LaunchPlan, by: By, at: tuple[int, ...] | None) -> tuple[Size, ...]:
    """Return the sizes to run `plan` at; `plan` is the job at its full size.

    Raises:
        UserError: there is nothing to compare, more is asked for than the job has, or slots that
            are no whole nodes.
    """
    most = plan.nodes if by is By.NODES else sum(plan.slots)
    counts = doubling(most) if at is None else at
    if len(counts) < 2:
        more = "--nodes 4" if by is By.NODES else "--gpus-per-node 4, or --nodes 2"
        raise UserError(
            f"one size alone ({counts[0]} {_noun(by, counts[0])}) has nothing to compare with",
            hint=f"say how far to go: {more}; or say the sizes: --at 1,2",
        )
    if counts[-1] > most:
        raise UserError(
            f"--at {counts[-1]}: the job has {most} {_noun(by, most)}",
            hint=f"--at up to {most}, or ask for more with --nodes and --gpus-per-node",
        )
    if by is By.NODES:
        return tuple(Size(count=count, nodes=count) for count in counts)
    return tuple(_in_slots(count, plan) for count in counts)


def _in_slots(count: int, plan: LaunchPlan) -> Size:
    each = plan.slots[0]
    if len(set(plan.slots)) > 1:
        raise UserError(
            "--by slots: the nodes have different numbers of slots", hint="--by nodes compares them"
        )
    if count <= each:
        return Size(count=count, nodes=1, slots=count)
    if count % each:
        whole = ",".join(str(n * each) for n in doubling(plan.nodes))
        raise UserError(
            f"{count} slots are no whole nodes of {each}",
            hint=f"--at with numbers up to {each}, or {whole}",
        )
    return Size(count=count, nodes=count // each, slots=each)


def _noun(by: By, count: int) -> str:
    return by.value if count != 1 else by.value[:-1]


def in_words(by: By, count: int) -> str:
    """Return a size in words, such as `2 nodes`."""
    return f"{count} {_noun(by, count)}"


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
