"""NET002: whether all nodes can connect to each other."""

from __future__ import annotations

from collections.abc import Mapping

from clusterkit.core.findings import Verdict
from clusterkit.core.text.listing import some_of
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, Tier, passed
from clusterkit.preflight.checks.net_evidence import Pair, absent, blame, read_links
from clusterkit.preflight.probes.net.links import PROBE

ABOUT = About(
    what="Every node can open a TCP connection to every other, and keeps it while data flows (of"
    " more than 64 nodes, each to 63 others).",
    why="Gloo and NCCL connect nodes with each other, not only with the head; one filtered pair"
    " hangs the first collective.",
    how="All nodes run a small program that dials all others by name, then meets them in pairs.",
    fix="Compare firewall, routes and name resolution of the named nodes with those of another.",
    source="our own",
)


def judge(evidence: Evidence) -> Judgement:
    """Name nodes that went away or that most others cannot reach, and single broken pairs."""
    yield from absent(evidence, PROBE)
    links = read_links(evidence)
    for node in links.gone:
        yield node, _fail("stopped answering while data was flowing", links.broken, node)
    tried = {pair for pair in links.tried if not set(pair) & set(links.gone)}
    bad = {pair: why for pair, why in links.broken.items() if pair in tried}
    nodes = sorted({node for pair in tried for node in pair})
    found = blame(bad, tried)
    if len(found.nodes) > 1 and len({tuple(sorted(p)) for p in tried}) == len(
        {tuple(sorted(p)) for p in bad}
    ):
        for node in nodes:
            yield node, _fail("no two nodes of the job connect with each other", bad, node)
        return
    ruled = set(found.nodes)
    for node in found.nodes:
        yield node, _fail(f"most other nodes and {node} do not connect", bad, node)
    for low, high in found.links:
        for node in sorted({low, high} - ruled):
            here = {pair: why for pair, why in bad.items() if set(pair) == {low, high}}
            yield node, _fail(f"{low} and {high} do not connect", here, node)
        ruled |= {low, high}
    for node in nodes:
        if node not in ruled:
            yield node, passed("connects with the other nodes")


def _fail(summary: str, broken: Mapping[Pair, str], node: str) -> Ruling:
    told = [f"{a} to {b}: {why}" for (a, b), why in sorted(broken.items()) if node in (a, b)]
    return Ruling(
        verdict=Verdict.FAIL,
        summary=summary,
        evidence=some_of(told, 3),
        hint="look for a firewall or a missing route between the nodes",
        command="sudo nft list ruleset; ip route; ip -s link",
    )


CHECK = Check(
    id="NET002", name="net-reach", about=ABOUT, probes=(PROBE,), judge=judge, tier=Tier.NETWORK
)
