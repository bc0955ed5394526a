"""What came of running a script at several sizes, as values and as a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterkit.core.files import plain
from clusterkit.observe.bench.scaling.evidence import NodeEvidence
from clusterkit.observe.bench.scaling.rates import Rate, common_unit
from clusterkit.observe.bench.scaling.sizes import By, Size
from clusterkit.observe.throughput import Unit

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
        "script": scaling.script,
        "framework": scaling.framework,
        "cluster": scaling.cluster,
        "by": scaling.by.value,
        "unit": f"{unit}/s" if unit else None,
        "base": scaling.base.size.count if scaling.base else None,
        "interrupted": scaling.interrupted,
        "interconnect": scaling.interconnect,
        "node_bytes_per_s": scaling.node_bytes_per_s,
        "rows": [_row(scaling, row, causes.get(row.size.count, ())) for row in scaling.rows],
    }


def _row(scaling: Scaling, row: Row, causes: tuple[Cause, ...]) -> dict[str, Any]:
    rate, efficiency = scaling.rate(row), scaling.efficiency(row)
    return {
        "size": row.size.count,
        "nodes": row.size.nodes,
        "slots": row.slots,
        "throughput": rate and rate.per_s,
        "low": rate and rate.low,
        "high": rate and rate.high,
        "lines": rate.lines if rate else 0,
        "average": rate.average if rate else None,
        "efficiency": None if efficiency is None else round(efficiency, 4),
        "steps": row.steps,
        "step_s": row.step_s,
        "job_id": row.job_id,
        "run_dir": row.run_dir,
        "state": row.state,
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
