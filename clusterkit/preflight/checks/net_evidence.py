"""What the NET checks share: what nodes measured of each other, and which of them are at fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import known
from clusterkit.preflight.checks.results import Advice, Result, Results, missing, ok
from clusterkit.preflight.checks.types import Evidence, NodeFacts
from clusterkit.preflight.probes.net.links import AGAIN, OK, PROBE
from clusterkit.preflight.probes.snippets import HEADER
from clusterkit.transport.probe import NOT_APPLICABLE, Missing, Probe

Pair = tuple[str, str]
"""Two nodes: from and to, or in rank order."""
T = TypeVar("T")
SLOW, BAD = 0.7, 0.5
"""Shares of the job's own median bandwidth below which a link warns and fails.

Ours: single streams between equal nodes differ by less than a third; half is a lost lane, a cable
that negotiated the rate below, or a port in half of a bond."""
FAR_TIMES = 5
FAR_US = 200
"""Less is the noise of schedulers and interrupts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Where bad pairs come from: nodes that most of their pairs are bad with, and what is left."""

    nodes: tuple[str, ...]
    links: tuple[Pair, ...]

    def spread(
        self,
        of_node: Callable[[str], Result],
        of_link: Callable[[str, str, str], Result],
        *,
        done: set[str],
    ) -> Results:
        """Yield a result for each node at fault, and for both ends of each link (ends and node).

        Nodes that are `done` have had one; all others are added.
        """
        for node in self.nodes:
            if node not in done:
                done.add(node)
                yield node, of_node(node)
        for low, high in self.links:
            for node in sorted({low, high} - done):
                yield node, of_link(low, high, node)
            done |= {low, high}


def locate(bad: Collection[Pair], measured: Collection[Pair]) -> Faults:
    """Return the fewest nodes that explain `bad` pairs, and the pairs that no node explains.

    A node is at fault where more than half of its pairs, two at least, are bad; the worst goes
    first, and its pairs no longer count against its partners.
    """
    all_left = {_sorted(pair) for pair in measured}
    bad_left = {_sorted(pair) for pair in bad} & all_left
    nodes: list[str] = []
    while bad_left:
        had = Counter(node for pair in all_left for node in pair)
        wrong = Counter(node for pair in bad_left for node in pair)
        suspects = [n for n in wrong if wrong[n] >= 2 and wrong[n] * 2 > had[n]]
        if not suspects:
            break
        worst = max(suspects, key=lambda node: (wrong[node] / had[node], wrong[node]))
        nodes.append(worst)
        all_left = {pair for pair in all_left if worst not in pair}
        bad_left = {pair for pair in bad_left if worst not in pair}
    return Faults(nodes=tuple(sorted(nodes)), links=tuple(sorted(bad_left)))


def _sorted(pair: Pair) -> Pair:
    low, high = sorted(pair)
    return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """All that nodes measured of each other, first and second look together."""

    rates: Mapping[Pair, int]
    """Bytes per second, by sender and receiver."""
    again: frozenset[Pair]
    """Pairs whose rate was measured in the second look too."""
    latencies_us: Mapping[Pair, int]
    broken: Mapping[Pair, str]
    """Why the first of the pair got no answer from the second."""
    tried: frozenset[Pair]
    """Pairs of nodes that both ran to the end, or that one of them went away from."""
    gone: tuple[str, ...]
    """Nodes that stopped answering half-way."""


def read_links(evidence: Evidence) -> Links:
    """Return what all nodes measured; a node where the program never ran is left out."""
    facts = facts_of(evidence, PROBE)
    gone = tuple(node.name for node in evidence.nodes if went_away(node, PROBE))
    known = facts.keys() | set(gone)
    rates: dict[Pair, int] = {}
    latencies: dict[Pair, int] = {}
    broken: dict[Pair, str] = {}
    tried: set[Pair] = set()
    for name, seen in facts.items():
        for peer, status in seen.reach:
            tried.add((name, peer))
            if status != OK:
                broken[name, peer] = status
    second = facts_of(evidence, AGAIN)
    for name, seen in [*facts.items(), *second.items()]:
        for met in seen.meetings:
            tried.add((name, met.peer))
            if met.status != OK:
                broken.setdefault((name, met.peer), met.status)
            if met.bytes_per_s is not None:
                rates[met.peer, name] = max(met.bytes_per_s, rates.get((met.peer, name), 0))
            if met.latency_us is not None:
                best = latencies.get((name, met.peer), met.latency_us)
                latencies[name, met.peer] = min(met.latency_us, best)
    return Links(
        rates=_among(rates, known),
        again=frozenset(
            (met.peer, name)
            for name, seen in second.items()
            for met in seen.meetings
            if met.bytes_per_s is not None
        ),
        latencies_us=_among(latencies, known),
        broken=_among(broken, known),
        tried=frozenset(pair for pair in tried if known.issuperset(pair)),
        gone=gone,
    )


def _among(values: Mapping[Pair, T], known: Collection[str]) -> dict[Pair, T]:
    return {pair: value for pair, value in values.items() if pair[0] in known and pair[1] in known}


def facts_of(evidence: Evidence, probe: Probe[T]) -> dict[str, T]:
    """Return the facts of the nodes that have them."""
    return known(evidence, probe)[0]


def went_away(node: NodeFacts, probe: Probe[T]) -> bool:
    """Tell whether a program began on a node and did not come to its end."""
    output = node.outputs.get(probe.name)
    if output is None or output.exit_code in {0, NOT_APPLICABLE}:
        return False
    return output.stdout.startswith(HEADER)


def absent(evidence: Evidence, probe: Probe[T]) -> Results:
    """Yield results for the nodes without facts that did not go away half-way."""
    for node in evidence.nodes:
        facts = node.of(probe)
        if isinstance(facts, Missing) and not went_away(node, probe):
            yield node.name, missing(facts)


def by_size(value: float) -> str:
    """Return bytes per second as people write the speed of a network."""
    gbit = value * 8 / 1e9
    return f"{gbit:.3g} Gbit/s" if gbit >= 1 else f"{gbit * 1e3:.3g} Mbit/s"


def far(latencies_us: Mapping[Pair, int]) -> dict[Pair, int]:
    """Return the pairs whose round trip is far above the median."""
    usual = median(latencies_us.values()) if latencies_us else 0.0
    most = max(FAR_TIMES * usual, usual + FAR_US)
    return {pair: us for pair, us in latencies_us.items() if us > most}


def compare_rates(
    rates: Mapping[Pair, float], *, again: Collection[Pair], what: str, advice: Advice
) -> Results:
    """Yield results for nodes and links by `rates` compared with their median; directed or not.

    Nothing fails on one look alone, in which a node may have been busy: what is low and not among
    the pairs that were measured `again` only warns.
    """
    if not rates:
        return
    middle = median(rates.values())
    done: set[str] = set()

    def low(slow: Mapping[Pair, float], measured: Collection[Pair], verdict: Verdict) -> Results:
        def result(summary: str, speeds: str) -> Result:
            return advice.result(verdict, summary, f"{speeds}, median of the job {by_size(middle)}")

        def of_node(node: str) -> Result:
            mine = {pair: rate for pair, rate in slow.items() if node in pair}
            sides = {("from", "to")[pair.index(node)] for pair in mine}
            side = sides.pop() if len(sides) == 1 else "of"
            summary = f"{what} {side} {node} is low with most other nodes"
            return result(summary, by_size(median(mine.values())))

        def of_link(low: str, high: str, _: str) -> Result:
            here = {pair: slow[pair] for pair in ((low, high), (high, low)) if pair in slow}
            speeds = ", ".join(f"{a} to {b} {by_size(rate)}" for (a, b), rate in here.items())
            return result(f"{what} between {low} and {high} is low, with others it is not", speeds)

        return locate(slow.keys(), measured).spread(of_node, of_link, done=done)

    bad, slow = ({p: r for p, r in rates.items() if r < limit * middle} for limit in (BAD, SLOW))
    unsure = bad.keys() - again
    certain = {pair: rate for pair, rate in bad.items() if pair not in unsure}
    yield from low(certain, rates.keys() - unsure, Verdict.FAIL)
    yield from low(slow, rates.keys(), Verdict.WARN)
    for node in sorted({node for pair in rates for node in pair} - done):
        yield node, ok(f"{what} is even, median {by_size(middle)}")
