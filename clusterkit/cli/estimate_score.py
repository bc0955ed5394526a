"""`clusterkit estimate --score`: how far the estimates are from published figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from clusterkit.cli import console
from clusterkit.cli.estimate_words import paragraph
from clusterkit.estimate.score_memory import Basis, FitScore, MemoryScore, score_fits, score_memory
from clusterkit.estimate.score_speed import SpeedScore, score_speed
from clusterkit.estimate.truth import Row, Unused, read_rows, setup_of

_FAR_OFF = 0.40
"""From this error on a figure is shown with what may be behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far some estimates are off; parts of the published figures."""

    rows: int
    median_abs_error: float | None
    p90_abs_error: float | None
    median_error: float | None
    """With its sign: above 0 where too much is estimated."""


def errors_of(errors: Iterable[float]) -> Errors:
    """Return the summary of some errors; None where there are none."""
    signed = sorted(errors)
    if not signed:
        return Errors(rows=0, median_abs_error=None, p90_abs_error=None, median_error=None)
    sizes = sorted(abs(error) for error in signed)
    high = quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0]
    return Errors(
        rows=len(signed),
        median_abs_error=round(median(sizes), 4),
        p90_abs_error=round(high, 4),
        median_error=round(median(signed), 4),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """All that was compared."""

    rows: tuple[Row, ...]
    memory: tuple[MemoryScore, ...]
    speed: tuple[SpeedScore, ...]
    fits: tuple[FitScore, ...]
    unused: Mapping[str, str]
    """Why a row was not used, by its id."""

    @property
    def false_fits(self) -> Sequence[FitScore]:
        """Runs that had too little memory where the estimate sees enough."""
        return [one for one in self.fits if one.false_fit]

    @property
    def false_misfits(self) -> Sequence[FitScore]:
        """Runs that had enough where the estimate, margin taken off, sees too little."""
        return [one for one in self.fits if one.false_misfit]

    def of_basis(self, basis: Basis) -> Errors:
        """Return the errors of memory of one basis."""
        return errors_of(one.error for one in self.memory if one.basis is basis)

    @property
    def throughput(self) -> Errors:
        """The errors of throughput with nothing measured."""
        return errors_of(one.error for one in self.speed)

    @property
    def calibrated(self) -> Errors:
        """Those after one measured step of the same model and card."""
        found = (one.calibrated_error for one in self.speed)
        return errors_of(error for error in found if error is not None)

    def by_source(self) -> Mapping[tuple[str, str], Errors]:
        """Return the errors by the family of rows and what they count."""
        groups: dict[tuple[str, str], list[float]] = {}
        for one in self.memory:
            groups.setdefault((one.row.family, str(one.basis)), []).append(one.error)
        for speed in self.speed:
            groups.setdefault((speed.row.family, "throughput"), []).append(speed.error)
        return {key: errors_of(group) for key, group in sorted(groups.items())}

    def far_off(self) -> Sequence[MemoryScore]:
        """Return the memory figures that are off by most, the worst first."""
        far = [one for one in self.memory if abs(one.error) > _FAR_OFF]
        return sorted(far, key=lambda one: -abs(one.error))


def score(rows: Sequence[Row]) -> Score:
    """Compare the estimates with the figures of `rows`."""
    memory, without_memory = score_memory(rows)
    speed, without_speed = score_speed(rows)
    fits = score_fits(rows)
    unused = {**without_memory, **without_speed}
    compared = {one.row.id for one in (*memory, *speed, *fits)}
    for row in rows:
        if row.id not in compared and row.id not in unused:
            setup = setup_of(row)
            reason = setup.reason if isinstance(setup, Unused) else "nothing is estimated of that"
            unused[row.id] = f"{row.quantity}: {reason}"
    unused = {key: reason for key, reason in unused.items() if key not in compared}
    return Score(rows=tuple(rows), memory=memory, speed=speed, fits=fits, unused=unused)


def show_score(path: Path, *, as_json: bool) -> None:
    """Print how far the estimates are from the figures in `path`."""
    found = score(read_rows(path))
    if as_json:
        console.json_document(document(found))
    else:
        console.say("\n".join(report(found)))


def document(found: Score) -> Mapping[str, Any]:
    """Return the score as JSON; errors are parts of the published figure."""
    main = (Basis.ALLOCATED, Basis.RESERVED, Basis.OTHER)
    return {
        "rows": len(found.rows),
        "used": len(found.rows) - len(found.unused),
        "memory": {str(basis): found.of_basis(basis) for basis in main},
        "throughput": {**_fields(found.throughput), "calibrated": found.calibrated},
        "false_fits": len(found.false_fits),
        "false_misfits": len(found.false_misfits),
        "analytic": found.of_basis(Basis.ANALYTIC),
        "fit_runs": len(found.fits),
        "beyond_card": sum(one.beyond_card for one in found.fits),
        "sources": [
            {"source": source, "quantity": what, **_fields(errors)}
            for (source, what), errors in found.by_source().items()
        ],
        "far_off": [
            {"id": one.row.id, "error": round(one.error, 4), "reason": one.doubt}
            for one in found.far_off()
        ],
        "unused": found.unused,
    }


def _fields(errors: Errors) -> Mapping[str, Any]:
    return {
        "rows": errors.rows,
        "median_abs_error": errors.median_abs_error,
        "p90_abs_error": errors.p90_abs_error,
        "median_error": errors.median_error,
    }


def report(found: Score) -> Sequence[str]:
    """Return the score for people."""
    used = len(found.rows) - len(found.unused)
    lines = [console.bold(f"{len(found.rows)} published figures, {used} of them can be compared")]
    lines += ["", _line("error of the estimate", "figures", "median", "90th")]
    for basis in Basis:
        lines.append(_errors(f"memory, {basis}", found.of_basis(basis)))
    lines.append(_errors("throughput", found.throughput))
    lines.append(_errors("throughput, one step measured", found.calibrated))
    ran = sum(one.fitted for one in found.fits)
    lines += ["", f"{len(found.fits)} runs, {ran} of which had enough memory:"]
    lines.append(f"  {len(found.false_fits)} said to fit that did not")
    beyond = sum(one.beyond_card for one in found.fits)
    lines.append(
        f"  {len(found.false_misfits)} said not to fit, with the margin, that ran "
        f"({beyond} of them without)"
    )
    lines += ["", _line("by source", "figures", "median", "90th")]
    for (source, what), errors in found.by_source().items():
        lines.append(_errors(f"{source}, {what}", errors))
    far = found.far_off()
    if far:
        lines += ["", f"memory off by more than {_FAR_OFF:.0%}:"]
    for one in far:
        lines += paragraph(f"{one.row.id} {one.error:+.0%}: {one.doubt}", first="  ", indent=4)
    reasons = Counter(found.unused.values())
    if reasons:
        lines += ["", "not compared:"]
    for reason, number in reasons.most_common():
        lines += paragraph(f"{number} x {reason}", first="  ", indent=4)
    return lines


def _errors(name: str, errors: Errors) -> str:
    if errors.median_abs_error is None or errors.p90_abs_error is None:
        return _line(f"  {name}", "0", "-", "-")
    middle, high = f"{errors.median_abs_error:.1%}", f"{errors.p90_abs_error:.1%}"
    return _line(f"  {name}", str(errors.rows), middle, high)


def _line(name: str, rows: str, middle: str, high: str) -> str:
    return f"{name:<50}{rows:>8}{middle:>9}{high:>9}"
