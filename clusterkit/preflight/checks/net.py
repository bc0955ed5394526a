"""NET: whether nodes reach each other, quickly, and what an all-reduce between them gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import median

from clusterkit.core.text import some_of
from clusterkit.preflight.checks.net_evidence import (
    BAD,
    Pair,
    absent,
    by_size,
    compare_rates,
    facts_of,
    far,
    locate,
    read_links,
    went_away,
)
from clusterkit.preflight.checks.results import Result, Results, advice, ok, unknown
from clusterkit.preflight.checks.types import Evidence, Tier, check
from clusterkit.preflight.probes.gpu.nccl_tests import TWO_NODES
from clusterkit.preflight.probes.net import allreduce, links
from clusterkit.preflight.probes.net.allreduce import AllReduceFacts
from clusterkit.preflight.probes.net.links import OK
from clusterkit.transport.probe import Probe

_STATUS = {
    "refused": "refused (by a firewall: a program of ours listens there)",
    "timeout": "no answer (a firewall that drops?)",
    "unreachable": "no route to it",
    "closed": "the connection breaks",
    "foreign": "another program answers there",
}


@check("NET001", "net-rendezvous", links.PROBE, tier=Tier.NETWORK)
def _rendezvous(evidence: Evidence) -> Results:
    yield from absent(evidence, links.PROBE)
    facts = facts_of(evidence, links.PROBE)
    head = evidence.nodes[0].name if evidence.nodes else ""
    if head not in facts:
        silent = unknown(f"nothing listened on the head {head}")
        yield from dict.fromkeys(facts, silent).items()
        return
    port, taken = facts[head].bound, facts[head].bound != facts[head].port
    where = f"the rendezvous port {port} of {head}"
    reach_of = {n: dict(seen.reach).get(head) if taken else seen.head for n, seen in facts.items()}
    found = {
        node: status for node, status in reach_of.items() if status is not None and node != head
    }
    # One verdict from all the others is about the head; with one other, it may be either.
    about_head = bool(found) and OK not in found.values()
    for node, status in found.items():
        if status == OK:
            yield node, ok(f"reaches {where}")
        elif about_head and len(found) > 1:
            yield node, unknown(f"no node reaches {where}")
        else:
            yield node, _cannot(head, where, status)
    if about_head:
        node, status = next(iter(found.items()))
        who = "no node reaches" if len(found) > 1 else f"{node} does not reach"
        yield head, _closed(f"{who} its rendezvous port {port}", status)
    elif taken and evidence.job.port is not None:
        # What clusterkit starts itself takes another port of the range.
        first = facts[head].port
        summary = f"port {first}, the first of `port_range`, is in use"
        yield head, advice("NET001", "taken", port=first).warn(summary)
    else:
        yield head, ok(f"reaches {where}")


def _cannot(head: str, where: str, status: str) -> Result:
    if status != "name" and not status.startswith("wrong:"):
        return _closed(f"cannot reach {where}", status)
    wrong = status.removeprefix("wrong:")
    return advice("NET001", "name", head=head).fail(
        f"{head} " + ("does not resolve" if status == "name" else f"resolves to {wrong}")
    )


def _closed(summary: str, status: str) -> Result:
    return advice("NET001", "closed").fail(summary, _STATUS.get(status, status))


@check("NET002", "net-reach", links.PROBE, tier=Tier.NETWORK)
def _reach(evidence: Evidence) -> Results:
    yield from absent(evidence, links.PROBE)
    seen = read_links(evidence)
    tried = {pair for pair in seen.tried if not set(pair) & set(seen.gone)}
    bad = {pair: why for pair, why in seen.broken.items() if pair in tried}

    def no_link(summary: str, broken: Mapping[Pair, str], node: str) -> Result:
        ways = [f"{a} to {b}: {why}" for (a, b), why in sorted(broken.items()) if node in (a, b)]
        return advice("NET002").fail(summary, some_of(ways, 3))

    def of_link(low: str, high: str, node: str) -> Result:
        here = {pair: why for pair, why in bad.items() if set(pair) == {low, high}}
        return no_link(f"{low} and {high} do not connect", here, node)

    for node in seen.gone:
        yield node, no_link("stopped answering while data was flowing", seen.broken, node)
    nodes = sorted({node for pair in tried for node in pair})
    faults = locate(bad, tried)
    if len(faults.nodes) > 1 and {frozenset(pair) for pair in tried} == {*map(frozenset, bad)}:
        for node in nodes:
            yield node, no_link("no two nodes of the job connect with each other", bad, node)
        return
    done: set[str] = set()
    yield from faults.spread(
        lambda node: no_link(f"most other nodes and {node} do not connect", bad, node),
        of_link,
        done=done,
    )
    yield from ((node, ok("connects with the other nodes")) for node in nodes if node not in done)


_SHARE_OF_NIC = 0.5
_ONE_STREAM_MBIT = 25_000
"""Beyond, one TCP stream from Python is the limit, not the interface."""


@check("NET003", "net-bandwidth", links.PROBE, links.AGAIN, tier=Tier.NETWORK)
def _bandwidth(evidence: Evidence) -> Results:
    yield from absent(evidence, links.PROBE)
    seen = read_links(evidence)
    facts = facts_of(evidence, links.PROBE).values()
    nics = Counter((f.nic, f.nic_mbit) for f in facts if f.nic_mbit is not None)
    (nic, mbit), _ = next(iter(nics.most_common(1)), ((None, None), 0))
    slow = advice("NET003", "named" if nic else "", nic=nic)
    yield from compare_rates(seen.rates, again=seen.again, what="bandwidth", advice=slow)
    if not seen.rates or mbit is None or mbit > _ONE_STREAM_MBIT:
        return
    usual, full = median(seen.rates.values()), mbit * 1e6 / 8
    if usual < _SHARE_OF_NIC * full:
        summary = "all links are slower than the interface is"
        speeds = f"median {by_size(usual)}, {nic} has {by_size(full)}"
        yield None, advice("NET003", "all", nic=nic).warn(summary, speeds)


@check("NET004", "net-latency", links.PROBE, links.AGAIN, tier=Tier.NETWORK)
def _latency(evidence: Evidence) -> Results:
    yield from absent(evidence, links.PROBE)
    seen = read_links(evidence).latencies_us
    if not seen:
        return
    usual, distant = median(seen.values()), far(seen)

    def distance(summary: str, worst: float) -> Result:
        trips = f"round trip {worst:.0f} us, median of the job {usual:.0f} us"
        return advice("NET004").warn(summary, trips)

    def of_node(node: str) -> Result:
        worst = max(us for pair, us in distant.items() if node in pair)
        return distance(f"{node} is far from most other nodes", worst)

    def of_link(low: str, high: str, _: str) -> Result:
        worst = max(us for pair, us in distant.items() if set(pair) == {low, high})
        return distance(f"{low} and {high} are far from each other", worst)

    done: set[str] = set()
    yield from locate(distant, seen).spread(of_node, of_link, done=done)
    for node in sorted({node for pair in seen for node in pair} - done):
        yield node, ok(f"round trips are even, median {usual:.0f} us")


@check("NET005", "net-allreduce", allreduce.PROBE, allreduce.AGAIN, tier=Tier.NETWORK)
def _allreduce(evidence: Evidence) -> Results:
    yield from absent(evidence, allreduce.PROBE)
    known = facts_of(evidence, allreduce.PROBE).keys()
    how = _outcomes(evidence)
    bad = {pair: why for pair, why in how.items() if why != "ok"}

    def failed(summary: str, node: str) -> Result:
        lines = [f"{a} with {b}: {why}" for (a, b), why in sorted(bad.items()) if node in (a, b)]
        return advice("NET005").fail(summary, "\n".join(lines[:3]))

    for node in [seen.name for seen in evidence.nodes if went_away(seen, allreduce.PROBE)]:
        yield node, advice("NET005").fail("stopped answering during an all-reduce")
    paired = {node for pair in how for node in pair}
    done: set[str] = set()
    yield from locate(bad, how).spread(
        lambda node: failed(f"an all-reduce with {node} fails whoever it is paired with", node),
        lambda low, high, node: failed(f"an all-reduce between {low} and {high} fails", node),
        done=done,
    )
    for node in sorted(paired - done):
        yield node, ok("an all-reduce with another node gives the right sum")
    for node in sorted(known - paired):
        yield node, unknown("no other node to be paired with")


def _outcomes(evidence: Evidence) -> dict[Pair, str]:
    """Return how it went, by the node that says so and its partner."""
    known = facts_of(evidence, allreduce.PROBE).keys()
    return {
        (node, exercise.peer): exercise.reason or exercise.status
        for probe in (allreduce.PROBE, allreduce.AGAIN)
        for node, facts in facts_of(evidence, probe).items()
        for exercise in facts.exercises
        if {node, exercise.peer} <= known
    }


_WARN_SHARE = 0.7
_ADAPTERS = advice("NET006")


@check("NET006", "net-busbw", allreduce.PROBE, allreduce.AGAIN, tier=Tier.NETWORK)
def _busbw(evidence: Evidence) -> Results:
    yield from absent(evidence, allreduce.PROBE)
    first, second = _rates(evidence, allreduce.PROBE), _rates(evidence, allreduce.AGAIN)
    rates = {pair: max(r.get(pair, 0.0) for r in (first, second)) for pair in {**first, **second}}
    again = _twice(first, second, rates)
    yield from compare_rates(rates, again=again, what="all-reduce bandwidth", advice=_ADAPTERS)
    devices = Counter(
        (exercise.device, facts.ranks_per_node)
        for probe in (allreduce.PROBE, allreduce.AGAIN)
        for facts in facts_of(evidence, probe).values()
        for exercise in facts.exercises
        if exercise.device
    )
    for (device, per_node), _ in devices.most_common(1):
        expected = next((one for one in TWO_NODES if one.gpu.search(device)), None)
        best = max(rates.values(), default=0.0) / 1e9
        if expected and per_node == expected.per_node and best < _WARN_SHARE * expected.gbs:
            figures = f"best pair {best:.0f} GB/s, published {expected.gbs:.0f} GB/s ({device})"
            summary = "all-reduces are slower than published for these GPUs"
            yield None, _ADAPTERS.warn(summary, figures)


def _rates(evidence: Evidence, probe: Probe[AllReduceFacts]) -> dict[Pair, float]:
    """Return the bus bandwidth of the pairs of one pass, by the first of the two names.

    A peer that took no part is a name that some node made up.
    """
    known = facts_of(evidence, allreduce.PROBE).keys()
    return {
        (node, exercise.peer): exercise.bus_bytes_per_s
        for node, facts in facts_of(evidence, probe).items()
        for exercise in facts.exercises
        if exercise.bus_bytes_per_s is not None and node < exercise.peer in known
    }


def _twice(
    first: Mapping[Pair, float], second: Mapping[Pair, float], rates: Mapping[Pair, float]
) -> set[Pair]:
    """Return the pairs that were looked at twice, and those of a node that was slow both times."""
    minimum = BAD * median(rates.values()) if rates else 0.0
    low = {pair for pair, rate in rates.items() if rate < minimum}
    slow = [{node for pair in low & seen.keys() for node in pair} for seen in (first, second)]
    return (first.keys() & second.keys()) | {pair for pair in low if slow[0] & slow[1] & {*pair}}
