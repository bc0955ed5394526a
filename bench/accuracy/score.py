"""How far estimates are from a table of published figures: memory, throughput, fits; and others.

The document that `summary_of` returns is the contract of `estimate --score --json`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .peers import PEERS, Peer
from .score_memory import (
    Basis,
    FitScore,
    MemoryScore,
    score_fits,
    score_memory,
)
from .score_speed import SpeedScore, score_speed
from .truth import Row

_NINE_TENTHS = 0.9
WORST = 5
"""How many rows a report shows as the worst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Absolute errors of some rows, as parts of 1."""

    rows: int
    median: float
    p90: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Everything that a table says of the estimates."""

    rows: int
    memory: tuple[MemoryScore, ...]
    speed: tuple[SpeedScore, ...]
    fits: tuple[FitScore, ...]
    peers: Mapping[str, tuple[float, ...]]
    """Errors of other estimators on the measured rows of memory that they cover."""
    without_habits: tuple[MemoryScore, ...]
    """`memory` where no habit of any program is known: what an unread program may expect."""
    unused: Mapping[str, str]
    """Why a row says nothing here, by its id."""

    @property
    def used(self) -> int:
        """Rows that were scored."""
        scored = {one.row.id for one in self.memory} | {one.row.id for one in self.speed}
        return len(scored | {one.row.id for one in self.fits if one.row.quantity == "fits"})

    def by_basis(self) -> Mapping[Basis, Spread]:
        """Return the errors of memory by what the figures count."""
        return _by_basis(self.memory)

    def by_basis_without_habits(self) -> Mapping[Basis, Spread]:
        """Return the same with no habit of any program known."""
        return _by_basis(self.without_habits)

    def by_source(self) -> Mapping[str, Spread]:
        """Return the errors of measured memory by the set of figures that rows belong to."""
        found: dict[str, list[float]] = {}
        for score in self.measured:
            found.setdefault(score.row.family, []).append(score.error)
        return {family: spread(errors) for family, errors in found.items()}

    def speed_by_source(self) -> Mapping[str, tuple[Spread, Spread]]:
        """Return the errors of throughput by the same sets: with nothing measured, and with a step.

        The second has no rows where no two runs of a set are of one model and card.
        """
        found: dict[str, list[SpeedScore]] = {}
        for score in self.speed:
            found.setdefault(score.row.family, []).append(score)
        return {
            family: (spread(one.error for one in some), spread(calibrated_errors(some)))
            for family, some in found.items()
        }

    @property
    def measured(self) -> tuple[MemoryScore, ...]:
        """Rows of memory that somebody measured."""
        return tuple(score for score in self.memory if score.basis is not Basis.ANALYTIC)

    @property
    def worst(self) -> tuple[MemoryScore, ...]:
        """The measured rows of memory, the worst first."""
        return tuple(sorted(self.measured, key=lambda score: -abs(score.error)))


def _by_basis(scores: Sequence[MemoryScore]) -> Mapping[Basis, Spread]:
    found = {basis: [score.error for score in scores if score.basis is basis] for basis in Basis}
    return {basis: spread(errors) for basis, errors in found.items() if errors}


def score(rows: Sequence[Row], peers: Mapping[str, Peer] = PEERS) -> Scores:
    """Score every row of a table that can be scored, and what `peers` say of the same setups."""
    memory, no_memory = score_memory(rows)
    speed, no_speed = score_speed(rows)
    measured = [one for one in memory if one.basis is not Basis.ANALYTIC]
    fits = score_fits(rows)
    scored = {one.row.id for one in memory} | {one.row.id for one in speed}
    scored |= {one.row.id for one in fits}
    others = {row.id: row.flaw or f"nothing is estimated of {row.quantity}" for row in rows}
    unused = {name: why for name, why in others.items() if name not in scored}
    return Scores(
        rows=len(rows),
        memory=memory,
        speed=speed,
        fits=fits,
        peers={name: _errors(estimate, measured) for name, estimate in peers.items()},
        without_habits=score_memory(rows, {})[0],
        unused={**unused, **no_memory, **no_speed},
    )


def _errors(estimate: Peer, measured: Iterable[MemoryScore]) -> tuple[float, ...]:
    said = ((one, estimate(one.setup)) for one in measured)
    return tuple(need / one.published - 1 for one, need in said if need is not None)


def calibrated_errors(scores: Iterable[SpeedScore]) -> Sequence[float]:
    """Return the errors with another row as measurement, of the rows for which there is one."""
    return [one.calibrated_error for one in scores if one.calibrated_error is not None]


def spread(errors: Iterable[float]) -> Spread:
    """Return the median, the 90th percentile and the largest of absolute errors."""
    sizes = sorted(abs(error) for error in errors)
    if not sizes:
        return Spread(rows=0, median=math.nan, p90=math.nan, worst=math.nan)
    return Spread(
        rows=len(sizes),
        median=_quantile(sizes, 0.5),
        p90=_quantile(sizes, _NINE_TENTHS),
        worst=sizes[-1],
    )


def _quantile(sizes: Sequence[float], part: float) -> float:
    """Return the quantile of sorted numbers, between two of them where it falls between."""
    place = part * (len(sizes) - 1)
    below = math.floor(place)
    above = min(below + 1, len(sizes) - 1)
    return sizes[below] + (sizes[above] - sizes[below]) * (place - below)


def summary_of(scores: Scores) -> dict[str, Any]:
    """Return the scores as a document for programs: `schema` 1, errors as parts of 1."""
    return {
        "schema": 1,
        "rows": scores.rows,
        "used": scores.used,
        "memory": {str(basis): _as_json(found) for basis, found in scores.by_basis().items()},
        "memory_without_habits": {
            str(basis): _as_json(found) for basis, found in scores.by_basis_without_habits().items()
        },
        "memory_by_source": {
            family: _as_json(found) for family, found in scores.by_source().items()
        },
        "throughput": {
            "uncalibrated": _as_json(spread(one.error for one in scores.speed)),
            "calibrated": _as_json(spread(calibrated_errors(scores.speed))),
        },
        "throughput_by_source": {
            family: {"uncalibrated": _as_json(plain), "calibrated": _as_json(measured)}
            for family, (plain, measured) in scores.speed_by_source().items()
        },
        "fits_checked": len(scores.fits),
        "false_fits": sum(one.false_fit for one in scores.fits),
        "false_misfits": sum(one.false_misfit for one in scores.fits),
        "false_misfits_without_margin": sum(one.beyond_card for one in scores.fits),
        "others": {name: _as_json(spread(errors)) for name, errors in scores.peers.items()},
        "worst": [
            {"id": one.row.id, "error": round(one.error, 4), "why": one.doubt}
            for one in scores.worst[:WORST]
        ],
        "unused": dict(scores.unused),
    }


def _as_json(found: Spread) -> dict[str, Any]:
    if not found.rows:
        return {"rows": 0, "median_abs_error": None, "p90_abs_error": None}
    return {
        "rows": found.rows,
        "median_abs_error": round(found.median, 4),
        "p90_abs_error": round(found.p90, 4),
    }
