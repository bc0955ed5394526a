"""NET004: whether a small message takes about as long between any two nodes."""

from __future__ import annotations

from statistics import median

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, Tier, passed
from clusterkit.preflight.checks.net_evidence import (
    FAR_TIMES,
    FAR_US,
    absent,
    blame,
    far,
    read_links,
)
from clusterkit.preflight.probes.net.links import AGAIN, PROBE

ABOUT = About(
    what="The median round trip of a small TCP message between each two nodes; a warning above"
    f" {FAR_TIMES} times the job's own median, and {FAR_US} microseconds more than it.",
    why="Small all-reduces and pipeline stages wait for it; a far node is in another room, behind"
    " a tunnel, or drops packets.",
    how="40 messages of one byte to and fro, in rounds of disjoint pairs; pairs that seem far are"
    " measured again while all else is quiet, and the lowest figure counts.",
    fix="Trace the route between the named nodes; look for power saving of CPU or interface.",
    source="our own threshold",
)


def judge(evidence: Evidence) -> Judgement:
    """Name the nodes or links that are far."""
    yield from absent(evidence, PROBE)
    seen = read_links(evidence).latencies_us
    if not seen:
        return
    usual = median(seen.values())
    distant = far(seen)
    found = blame(distant, seen)
    ruled = set(found.nodes)
    for node in found.nodes:
        worst = max(us for pair, us in distant.items() if node in pair)
        yield node, _warn(f"{node} is far from most other nodes", worst, usual)
    for low, high in found.links:
        worst = max(us for pair, us in distant.items() if set(pair) == {low, high})
        for node in sorted({low, high} - ruled):
            yield node, _warn(f"{low} and {high} are far from each other", worst, usual)
        ruled |= {low, high}
    for node in sorted({node for pair in seen for node in pair} - ruled):
        yield node, passed(f"round trips are even, median {usual:.0f} us")


def _warn(summary: str, worst: float, usual: float) -> Ruling:
    return Ruling(
        verdict=Verdict.WARN,
        summary=summary,
        evidence=f"round trip {worst:.0f} us, median of the job {usual:.0f} us",
        hint="look at the route, and at what else keeps the node busy",
        command="ip route; ip -s link",
    )


CHECK = Check(
    id="NET004",
    name="net-latency",
    about=ABOUT,
    probes=(PROBE, AGAIN),
    judge=judge,
    tier=Tier.NETWORK,
)
