"""The page: what the template needs, worked out from a bundle and its report."""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any

from markupsafe import Markup

from clusterkit.core.data import read_template
from clusterkit.core.findings import Finding, Verdict
from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.core.html import environment, policy
from clusterkit.core.shell import quote
from clusterkit.core.version import __version__
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.checks import AREAS
from clusterkit.preflight.checks.base import Evidence, NodeFacts
from clusterkit.preflight.checks.net_evidence import Pair, read_links
from clusterkit.preflight.html import types
from clusterkit.preflight.html.facts import fact_table
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
_QUIET = frozenset({Verdict.PASS, Verdict.SKIP})
_WORST_FIRST = tuple(sorted(Verdict, key=_RANK.__getitem__, reverse=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """A node in the map and in the table of facts."""

    name: str
    verdict: Verdict
    ids: str
    """The checks that its verdict comes from, folded; empty where that is a quiet one."""


def page(bundle: Bundle, report: Report) -> str:
    """Return the report as one HTML document that loads nothing."""
    facts = tuple(
        NodeFacts(name=reply.node, outputs=reply.outputs, reach=reply.reach)
        for reply in bundle.replies
    )
    evidence = Evidence(
        job=bundle.job, nodes=tuple(node for node in facts if node.reach.problem is None)
    )
    style, script = (read_template(f"pages/preflight.{end}") for end in ("css", "js"))
    lines, maps = _node_lines(report), matrices(evidence, report.nodes)
    return (
        environment()
        .get_template("preflight.html.j2")
        .render(
            style=Markup(style),  # noqa: S704 - ours, not a node's
            script=Markup(script),  # noqa: S704
            policy=policy(style, script),
            version=__version__,
            written_by=bundle.written_by,
            date=f"{datetime.fromtimestamp(bundle.collected_at, tz=UTC):%Y-%m-%d %H:%M UTC}",
            about=_about(bundle),
            report=report,
            excluded=quote(fold_set(report.exclude)) if report.exclude else "",
            nodes=lines,
            tally=[(v, sum(line.verdict is v for line in lines)) for v in _WORST_FIRST],
            counts=[(v, report.counts()[v]) for v in _WORST_FIRST],
            loud=_alike(f for f in report.findings if f.verdict not in _QUIET),
            quiet=_alike(f for f in report.findings if f.verdict in _QUIET),
            areas=AREAS,
            symbols=SYMBOLS,
            verdict_rows=verdict_rows(report),
            table=fact_table(facts),
            types=types.node_types(facts),
            maps=maps,
            data=[packed(matrix) for matrix in maps],
        )
    )


def _about(bundle: Bundle) -> tuple[tuple[str, str], ...]:
    job = bundle.job
    vias = dict.fromkeys(reply.reach.via for reply in bundle.replies)
    through = "" if set(vias) <= {job.kind} else f", asked through {' and '.join(vias)}"
    known = (
        ("cluster", job.kind + through),
        ("nodes", fold_set(reply.node for reply in bundle.replies)),
        ("framework", job.framework),
        ("GPUs per node", job.gpus_per_node),
        ("Python", job.python),
        ("image", job.image),
        ("shared folders", ", ".join(job.paths)),
    )
    return tuple((label, str(value)) for label, value in known if value)


def _node_lines(report: Report) -> tuple[NodeLine, ...]:
    worst: dict[str, Verdict | None] = dict.fromkeys(report.nodes)
    ids: dict[str, dict[str, None]] = {node: {} for node in report.nodes}
    folded = lru_cache(maxsize=None)(fold_set)
    for finding in report.findings:
        for node in finding.nodes:
            if _RANK[finding.verdict] > _RANK[worst[node]]:
                worst[node], ids[node] = finding.verdict, {}
            if finding.verdict is worst[node] and finding.verdict not in _QUIET:
                ids[node][finding.id] = None
    return tuple(
        NodeLine(name=node, verdict=verdict or Verdict.SKIP, ids=folded(tuple(ids[node])))
        for node, verdict in worst.items()
    )


def _alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return findings that say the same together, worst first; the job's before those of nodes."""
    found: dict[tuple[Verdict, str, str, bool], list[Finding]] = {}
    for finding in findings:
        key = (finding.verdict, finding.summary, finding.hint, bool(finding.nodes))
        found.setdefault(key, []).append(finding)
    return sorted(found.values(), key=lambda one: (-_RANK[one[0].verdict], bool(one[0].nodes)))


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
    cells: tuple[Cell, ...]
    """In the order of `AREAS`."""


def verdict_rows(report: Report) -> tuple[Row, ...]:
    """Return nodes grouped by their verdicts: the job first, then worst first."""
    cells: dict[str | None, dict[str, Cell]] = {None: {}} | {node: {} for node in report.nodes}
    for finding in report.findings:
        for key in finding.nodes or (None,):
            _enter(cells[key], finding)
    grouped: dict[tuple[Cell, ...], list[str]] = {}
    of_job = _row(cells.pop(None))
    for node, found in cells.items():
        grouped.setdefault(_row(found), []).append(str(node))
    rows = [Row(nodes=tuple(nodes), cells=row) for row, nodes in grouped.items()]
    ranks = {row: sorted((_RANK[c.verdict] for c in row.cells), reverse=True) for row in rows}
    rows.sort(key=lambda row: ranks[row], reverse=True)
    job = [Row(nodes=(), cells=of_job)] if any(cell.verdict for cell in of_job) else []
    return (*job, *rows)


def _enter(cells: dict[str, Cell], finding: Finding) -> None:
    area = finding.id.rstrip("0123456789")
    before = cells.get(area)
    if before is None or _RANK[finding.verdict] > _RANK[before.verdict]:
        cells[area] = Cell(verdict=finding.verdict, ids=(finding.id,))
    elif finding.verdict is before.verdict and finding.id not in before.ids:
        cells[area] = Cell(verdict=before.verdict, ids=(*before.ids, finding.id))


def _row(cells: Mapping[str, Cell]) -> tuple[Cell, ...]:
    """Return the cell of each area; what passed and what does not apply needs no ids."""
    found = (cells.get(area, Cell(verdict=None)) for area in AREAS)
    return tuple(cell if _RANK[cell.verdict] > 1 else Cell(verdict=cell.verdict) for cell in found)


FAILED = -1.0
"""The pair was tried and nothing went through."""

_FAILED_CODE, _STEPS = 255, 253
"""Codes 1 to 254 are values, lowest first; 0 was not measured."""
_FINEST = 0.01
"""Smallest step: 1 %. A finer one would show noise, and noise does not deflate."""


@dataclass(frozen=True, kw_only=True)  # no slots: cached_property needs a __dict__
class PairMatrix:
    """One figure for ordered pairs of nodes, those that were measured."""

    title: str
    unit: str
    more_is_better: bool
    nodes: tuple[str, ...]
    pairs: array[int]
    """Index of the node from which, times the number of nodes, plus index of the node to which."""
    values: array[float]
    """One for each of `pairs`: positive, or `FAILED`; at least one is positive."""

    @cached_property
    def known(self) -> array[float]:
        """All values that were measured, sorted."""
        return array("d", sorted(value for value in self.values if value > 0))

    @cached_property
    def median(self) -> float:
        """The middle of all values that were measured."""
        return self.known[len(self.known) // 2]


def packed(matrix: PairMatrix) -> dict[str, Any]:
    """Return `matrix` as report.js reads it.

    1,600 nodes are 2.6 million pairs: each is one byte, a step on a logarithmic scale, and the
    whole is deflated. A page with two such maps has about 4 MB.
    """
    low, high = matrix.known[0], matrix.known[-1]
    step = max(math.log(high / low) / _STEPS, _FINEST)
    codes = bytearray(len(matrix.nodes) ** 2)
    for pair, value in zip(matrix.pairs, matrix.values, strict=True):
        step_up = 0 if value == FAILED else round(math.log(value / low) / step)
        codes[pair] = _FAILED_CODE if value == FAILED else 1 + step_up
    return {
        "unit": matrix.unit,
        "more": matrix.more_is_better,
        "size": len(matrix.nodes),
        "nodes": matrix.nodes,
        "low": low,
        "step": step,
        "median": matrix.median,
        "cells": base64.b64encode(zlib.compress(codes, 9)).decode(),
    }


def matrices(evidence: Evidence, names: tuple[str, ...]) -> tuple[PairMatrix, ...]:
    """Return bandwidth and latency between the nodes `names`, those of the two that are known."""
    links = read_links(evidence)
    gbit = {pair: rate * 8 / 1e9 for pair, rate in links.rates.items()}
    # A round trip has no direction; the node that called tells it.
    there = {pair: float(us) for pair, us in links.latencies_us.items()}
    back = {(b, a): us for (a, b), us in there.items()}
    found = (
        ("Bandwidth", "Gbit/s", True, gbit),
        ("Latency", "\u00b5s", False, back | there),
    )
    return tuple(
        _matrix(names, title, unit, more_is_better=more, figures=figures, broken=links.broken)
        for title, unit, more, figures in found
        if any(figures.values())
    )


def _matrix(
    names: tuple[str, ...],
    title: str,
    unit: str,
    *,
    more_is_better: bool,
    figures: Mapping[Pair, float],
    broken: Mapping[Pair, str],
) -> PairMatrix:
    places = {name: place for place, name in enumerate(names)}
    known = dict.fromkeys(broken, FAILED) | {pair: v for pair, v in figures.items() if v > 0}
    cells = {
        places[a] * len(names) + places[b]: value
        for (a, b), value in known.items()
        if a in places and b in places and a != b
    }
    return PairMatrix(
        title=title,
        unit=unit,
        more_is_better=more_is_better,
        nodes=names,
        pairs=array("Q", cells),
        values=array("d", cells.values()),
    )
