"""The figures between nodes, from what the network probes said."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from clusterkit.preflight.checks.base import Evidence
from clusterkit.preflight.checks.net_evidence import Pair, read_links
from clusterkit.preflight.html.pairs import FAILED, PairMatrix


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
