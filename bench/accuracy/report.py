"""`clusterkit estimate --score`: how far the estimates are from published figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterkit.cli.frame import console
from clusterkit.core.text import wrapped

from .score import (
    Scores,
    Spread,
    calibrated_errors,
    score,
    spread,
    summary_of,
)
from .truth import read_rows

_FAR_OFF = 0.40
"""From this error on a figure is shown, with what may be behind it."""


def show_score(path: Path, *, as_json: bool) -> None:
    """Print how far the estimates are from the figures in `path`."""
    scores = score(read_rows(path))
    if as_json:
        console.json_document(document(scores))
    else:
        console.say("\n".join(report(scores)))


def document(scores: Scores) -> Mapping[str, Any]:
    """Return the score as JSON: errors are parts of 1, and every basis is there."""
    summary = summary_of(scores)
    nothing = {"rows": 0, "median_abs_error": None, "p90_abs_error": None}
    bases = dict.fromkeys(("allocated", "reserved", "other"), nothing)
    throughput = summary["throughput"]
    return {
        **summary,
        "memory": {**bases, **summary["memory"]},
        "throughput": {**throughput["uncalibrated"], **throughput},
    }


def report(scores: Scores) -> Sequence[str]:
    """Return the score for people."""
    title = f"{scores.rows} published figures, {scores.used} of them can be compared"
    return [
        console.bold(title),
        "",
        *_summary(scores),
        "",
        *_fits(scores),
        "",
        *_sources(scores),
        "",
        *_far_off(scores),
        *_unused(scores),
    ]


def lines_of(scores: Scores) -> Sequence[tuple[str, Spread]]:
    """Return what the summary says, name by name."""
    return (
        *((f"memory, {basis}", found) for basis, found in scores.by_basis().items()),
        *(
            (f"memory, {basis}, of a program not known", found)
            for basis, found in scores.by_basis_without_habits().items()
            if found != scores.by_basis()[basis]
        ),
        ("throughput", spread(one.error for one in scores.speed)),
        ("throughput, one step measured", spread(calibrated_errors(scores.speed))),
    )


def _summary(scores: Scores) -> Iterator[str]:
    yield _line("error of the estimate", "figures", "median", "90th")
    for name, found in lines_of(scores):
        yield _errors(name, found)
    yield ""
    yield _line("other estimators on the same figures of memory", "figures", "median", "90th")
    for name, errors in scores.peers.items():
        yield _errors(name, spread(errors))


def _fits(scores: Scores) -> Iterator[str]:
    ran = sum(one.fitted for one in scores.fits)
    false_fits = [one.row.id for one in scores.fits if one.false_fit]
    misfits = sum(one.false_misfit for one in scores.fits)
    beyond = sum(one.beyond_card for one in scores.fits)
    yield f"{len(scores.fits)} runs, {ran} of which had enough memory:"
    named = f" ({', '.join(false_fits)})" if false_fits else ""
    yield f"  {len(false_fits)} are said to fit that did not{named}"
    yield f"  {misfits} ran that are said not to fit with the margin, {beyond} also without it"


def _sources(scores: Scores) -> Iterator[str]:
    yield _line("by source", "figures", "median", "90th")
    for source, found in sorted(scores.by_source().items()):
        yield _errors(f"{source}, memory", found)
    for source, (plain, measured) in sorted(scores.speed_by_source().items()):
        yield _errors(f"{source}, throughput", plain)
        if measured.rows:
            yield _errors(f"{source}, one step measured", measured)


def _far_off(scores: Scores) -> Iterator[str]:
    far = [one for one in scores.worst if abs(one.error) > _FAR_OFF]
    if not far:
        yield f"no figure of memory is missed by more than {_FAR_OFF:.0%}"
        return
    yield f"memory missed by more than {_FAR_OFF:.0%}:"
    for one in far:
        yield from wrapped(f"{one.row.id} {one.error:+.0%}: {one.doubt}", "  ", "    ")


def _unused(scores: Scores) -> Iterator[str]:
    reasons = Counter(scores.unused.values())
    if reasons:
        yield ""
        yield "not compared:"
    for reason, number in reasons.most_common():
        yield from wrapped(f"{number} x {reason}", "  ", "    ")


def _errors(name: str, found: Spread) -> str:
    if not found.rows:
        return _line(f"  {name}", "0", "-", "-")
    return _line(f"  {name}", str(found.rows), f"{found.median:.1%}", f"{found.p90:.1%}")


def _line(name: str, rows: str, middle: str, high: str) -> str:
    return f"{name:<50}{rows:>8}{middle:>9}{high:>9}"
