"""One job at several sizes, nodes or slots, planned before the first starts; and what they gave."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from clusterkit.core.errors import Problem, UserError, choices_hint
from clusterkit.core.files import plain
from clusterkit.core.model import LaunchPlan
from clusterkit.core.records import picked
from clusterkit.core.throughput import Unit
from clusterkit.executors import executor_for
from clusterkit.jobs.submit.request import JobRequest
from clusterkit.jobs.submit.submit import Prepared, prepare
from clusterkit.observe.bench.scaling.evidence import NodeEvidence
from clusterkit.observe.bench.scaling.rates import Rate, common_unit

FAIR = 0.9
"""Efficiency below which a reason is looked for."""
BEYOND = 1.25
"""Efficiency above which it is the smallest run that is doubted: caches give less than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run."""

    size: Size
    slots: int
    """Of the whole job."""
    job_id: str | None = None
    run_dir: str | None = None
    state: str = ""
    """Of the job; `cancelled` where it was ended because enough had been seen."""
    rates: Mapping[Unit, Rate] = field(default_factory=dict)
    """Empty where it could not be measured."""
    steps: int = 0
    """That were measured."""
    step_s: float | None = None
    """How long one of them took, by the clock of who looked on."""
    evidence: tuple[NodeEvidence, ...] = ()
    problem: str = ""
    """Why there is no rate."""
    hint: str = ""
    failed: bool = False
    """The job failed or hung, which is more than that it told nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What keeps a run from being faster, as far as it shows."""

    kind: str
    """straggler, throttle, data-loading, processors, communication, base or unknown."""
    summary: str
    nodes: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """All runs of a script."""

    script: str
    framework: str
    cluster: str
    shares_machine: bool
    """Whether the nodes are all this machine, as those of a local cluster are."""
    by: By
    rows: tuple[Row, ...]
    interrupted: bool = False
    interconnect: str | None = None
    """What joins the nodes, as `estimate` calls it."""
    node_bytes_per_s: float | None = None
    """What that lets a node send and receive, by the link model of `estimate`."""

    @property
    def unit(self) -> Unit | None:
        """What rates are told in: what every measured run has told."""
        return common_unit(row.rates for row in self.rows if row.rates)

    @property
    def base(self) -> Row | None:
        """The smallest run that was measured."""
        return next((row for row in self.rows if self.rate(row)), None)

    def rate(self, row: Row) -> Rate | None:
        """Return the rate of a run; None where there is none to compare."""
        return row.rates.get(self.unit) if self.unit else None

    def efficiency(self, row: Row) -> float | None:
        """Return T_N / (N x T_1), as a fraction; against the smallest run where that is not 1."""
        base, rate = self.base, self.rate(row)
        of_base = self.rate(base) if base else None
        if base is None or rate is None or of_base is None:
            return None
        times = row.size.count / base.size.count
        return rate.per_s / (times * of_base.per_s)

    def short(self, row: Row) -> bool:
        """Tell whether a run falls short of what more of the same should give."""
        efficiency = self.efficiency(row)
        return efficiency is not None and efficiency < FAIR

    def beyond(self, row: Row) -> bool:
        """Tell whether a run is so much faster than the smallest that this one was held up."""
        efficiency = self.efficiency(row)
        return efficiency is not None and efficiency > BEYOND


def document(scaling: Scaling, causes: Mapping[int, tuple[Cause, ...]]) -> dict[str, Any]:
    """Return what `--json` tells; `causes` are by the size of the run."""
    unit = scaling.unit
    return {
        **picked(scaling, "script", "framework", "cluster", "by", "interrupted"),
        **picked(scaling, "interconnect", "node_bytes_per_s"),
        "unit": f"{unit}/s" if unit else None,
        "base": scaling.base.size.count if scaling.base else None,
        "rows": [_row(scaling, row, causes.get(row.size.count, ())) for row in scaling.rows],
    }


def _row(scaling: Scaling, row: Row, causes: tuple[Cause, ...]) -> dict[str, Any]:
    rate, efficiency = scaling.rate(row), scaling.efficiency(row)
    return {
        "size": row.size.count,
        "nodes": row.size.nodes,
        **picked(row, "slots", "steps", "step_s", "job_id", "run_dir", "state"),
        "throughput": rate and rate.per_s,
        "low": rate and rate.low,
        "high": rate and rate.high,
        "lines": rate.lines if rate else 0,
        "average": rate.average if rate else None,
        "efficiency": None if efficiency is None else round(efficiency, 4),
        "problem": row.problem or None,
        "hint": row.hint or None,
        "causes": plain(causes),
        "evidence": plain(row.evidence),
    }


def in_percent(share: float) -> str:
    """Return a fraction, such as `47 %`."""
    return f"{100 * share:.0f} %"


def figure(rate: float) -> str:
    """Return a rate with as many digits as mean something."""
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"


def step_time(seconds: float) -> str:
    """Return how long a step takes, such as `63.7 ms`."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


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
            are not whole nodes.
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
            f"{count} slots are not whole nodes of {each}",
            hint=f"--at with numbers up to {each}, or {whole}",
        )
    return Size(count=count, nodes=count // each, slots=each)


def _noun(by: By, count: int) -> str:
    return by.value if count != 1 else by.value[:-1]


def in_words(by: By, count: int) -> str:
    """Return a size in words, such as `2 nodes`."""
    return f"{count} {_noun(by, count)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The job at all its sizes, from the smallest to the largest."""

    by: By
    plan: LaunchPlan
    """At its full size."""
    jobs: Mapping[Size, Prepared]


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
    jobs = {size: prepare(_at(request, size)) for size in sizes}
    largest = jobs[sizes[-1]].plan
    with request.placing():
        executor_for(plan.cluster.kind).check_limits(largest)
    return Ladder(by=chosen, plan=largest, jobs=jobs)


def _at(request: JobRequest, size: Size) -> JobRequest:
    sized = _with(request, nodes=size.nodes)
    return sized if size.slots is None else _with(sized, gpus_per_node=size.slots)


def _with(request: JobRequest, **values: int) -> JobRequest:
    texts = {name: str(value) for name, value in values.items()}
    return dataclasses.replace(request, flags={**request.flags, **texts})


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
