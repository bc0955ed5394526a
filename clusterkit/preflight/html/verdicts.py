"""Verdicts by node and area, for the table and the map of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clusterkit.core.findings import Finding, Verdict
from clusterkit.preflight.checks import AREAS
from clusterkit.preflight.report import Report

SYMBOLS: Mapping[Verdict, str] = {
    Verdict.PASS: "\u2713",
    Verdict.SKIP: "\u2013",
    Verdict.UNKNOWN: "?",
    Verdict.WARN: "!",
    Verdict.FAIL: "\u2715",
}
"""A verdict is never told by its colour alone."""

_NOTHING = -1
_RANK = {None: _NOTHING, Verdict.SKIP: 0, Verdict.PASS: 1} | {
    verdict: 2 + verdict.severity for verdict in (Verdict.UNKNOWN, Verdict.WARN, Verdict.FAIL)
}
"""What a part shows: one check that does not apply hides none that passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The worst verdict of a node in one area, and the checks that say so."""

    verdict: Verdict | None
    """None: nothing was checked."""
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Nodes with the same cell in every area."""

    nodes: tuple[str, ...]
    """Empty for the row of the job as a whole."""
    worst: Verdict | None
    cells: tuple[Cell, ...]
    """In the order of `AREAS`."""


def rank(verdict: Verdict | None) -> int:
    """Return the order in which verdicts win over each other, the strongest last."""
    return _RANK[verdict]


def rows(report: Report) -> tuple[Row, ...]:
    """Return nodes grouped by their verdicts: the job first, then worst first."""
    cells: dict[str | None, dict[str, Cell]] = {None: {}} | {node: {} for node in report.nodes}
    for finding in report.findings:
        for key in finding.nodes or (None,):
            _enter(cells[key], finding)
    grouped: dict[tuple[Cell, ...], list[str]] = {}
    empty = Cell(verdict=None)
    for node in report.nodes:
        row = tuple(cells[node].get(area, empty) for area in AREAS)
        grouped.setdefault(row, []).append(node)
    found = [_row(nodes, row) for row, nodes in grouped.items()]
    found.sort(key=lambda row: [rank(row.worst), *sorted(_ranks(row), reverse=True)], reverse=True)
    if cells[None]:
        found.insert(0, _row((), tuple(cells[None].get(area, empty) for area in AREAS)))
    return tuple(found)


def _enter(cells: dict[str, Cell], finding: Finding) -> None:
    area = finding.id.rstrip("0123456789")
    before = cells.get(area)
    if before is None or rank(finding.verdict) > rank(before.verdict):
        cells[area] = Cell(verdict=finding.verdict, ids=(finding.id,))
    elif finding.verdict is before.verdict and finding.id not in before.ids:
        cells[area] = Cell(verdict=before.verdict, ids=(*before.ids, finding.id))


def _row(nodes: Iterable[str], cells: tuple[Cell, ...]) -> Row:
    worst = max((cell.verdict for cell in cells), key=rank, default=None)
    shown = tuple(cell if _RANK[cell.verdict] > 1 else Cell(verdict=cell.verdict) for cell in cells)
    return Row(nodes=tuple(nodes), worst=worst, cells=shown)


def _ranks(row: Row) -> list[int]:
    return [rank(cell.verdict) for cell in row.cells]
