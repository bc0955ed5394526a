"""SSH002: how long a round trip to a node takes."""

from __future__ import annotations

from statistics import median

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, Tier, passed

_SLOW_S = 0.050
_TIMES_MEDIAN = 10
_NEVER_BELOW_S = 0.002
"""Ten times a median of microseconds is still quick; below this no factor counts."""

ABOUT = About(
    what="A small round trip over the open SSH connection is quick, and as quick as to the others.",
    why="A node that answers late is overloaded, badly wired, or in another place than the others.",
    how="One command that does nothing, timed after the connection stands.",
    fix="Look at the load of the node, its network interface (speed, errors) and its route.",
    source="ours: 50 ms is another continent, and ten times the median is a node in trouble",
)


def judge(evidence: Evidence) -> Judgement:
    """Warn of slow nodes."""
    timed = {n.name: n.reach.latency_s for n in evidence.nodes if n.reach.latency_s is not None}
    typical = median(timed.values()) if timed else 0.0
    for node in evidence.nodes:
        latency_s = timed.get(node.name)
        if node.reach.via != "ssh":
            yield node.name, Ruling(verdict=Verdict.SKIP, summary="not asked by ssh")
        elif latency_s is None:
            yield node.name, Ruling(verdict=Verdict.UNKNOWN, summary="latency was not measured")
        elif latency_s > _SLOW_S or latency_s > max(_NEVER_BELOW_S, _TIMES_MEDIAN * typical):
            yield node.name, _slow(latency_s, typical)
        else:
            yield node.name, passed("latency as low as that of the others")


def _slow(latency_s: float, typical_s: float) -> Ruling:
    return Ruling(
        verdict=Verdict.WARN,
        summary="slow to answer over ssh",
        evidence=f"{latency_s * 1000:.1f} ms, median {typical_s * 1000:.1f} ms",
        hint="look at the node's load and at the errors of its network interface",
        command="uptime; ip -s link",
    )


CHECK = Check(
    id="SSH002",
    name="ssh-latency",
    about=ABOUT,
    probes=(),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
