"""NET003: whether all links between nodes are about as fast."""

from __future__ import annotations

from collections import Counter
from statistics import median

from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, Tier
from clusterkit.preflight.checks.net_evidence import (
    BAD,
    SLOW,
    absent,
    by_size,
    facts_of,
    read_links,
    rule_by_median,
)
from clusterkit.preflight.probes.net.links import AGAIN, PROBE

_SHARE_OF_NIC = 0.5
_ONE_STREAM_MBIT = 25_000
"""Beyond, one TCP stream from Python is the limit, not the interface."""

_HINT = "look at the negotiated speed, errors and drops of the interface; then cable and port"

ABOUT = About(
    what="TCP bandwidth between each two nodes, in both directions, compared with the job's own"
    f" median: below {SLOW:g} of it is a warning, below {BAD:g} in both of two looks a failure. A"
    " node is named where most of its links are slow, else the link.",
    why="A ring or a tree goes at the pace of its slowest link: one bad cable slows all nodes.",
    how="A program on all nodes, standard library only: rounds of disjoint pairs, one TCP stream,"
    " counted by the receiver; pairs that seem slow are measured again while all else is quiet, and"
    " the best figure counts."
    " This is TCP by the nodes' names or the cluster's network_interface, not RDMA.",
    fix="Look at the negotiated speed, errors and drops of the interface, then cable and switch"
    " port; a node that is busy with something else is slow as well.",
    source="our own thresholds; facts of the method: rotation over disjoint pairs",
)


def judge(evidence: Evidence) -> Judgement:
    """Compare with the median of the job; with the interfaces' own speed only to warn."""
    yield from absent(evidence, PROBE)
    links = read_links(evidence)
    rates = links.rates
    nics = Counter(
        (facts.nic, facts.nic_mbit)
        for facts in facts_of(evidence, PROBE).values()
        if facts.nic_mbit is not None
    ).most_common(1)
    nic, mbit = nics[0][0] if nics else (None, None)
    command = f"ethtool {quote(nic)}; ip -s link show {quote(nic)}" if nic else "ip -s link"
    yield from rule_by_median(
        rates, again=links.again, what="bandwidth", hint=_HINT, command=command
    )
    if not rates or mbit is None or mbit > _ONE_STREAM_MBIT:
        return
    usual, full = median(rates.values()), mbit * 1e6 / 8
    if usual < _SHARE_OF_NIC * full:
        yield (
            None,
            Ruling(
                verdict=Verdict.WARN,
                summary="all links are slower than the interface is",
                evidence=f"median {by_size(usual)}, {nic} has {by_size(full)}",
                hint="the switch may be oversubscribed, or the network busy with other jobs",
                command=command,
            ),
        )


CHECK = Check(
    id="NET003",
    name="net-bandwidth",
    about=ABOUT,
    probes=(PROBE, AGAIN),
    judge=judge,
    tier=Tier.NETWORK,
)
