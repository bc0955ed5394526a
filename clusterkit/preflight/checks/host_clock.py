"""HOST001: whether the clocks of the nodes agree."""

from __future__ import annotations

from statistics import median

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, Tier, passed

_WARN_S = 1.0
_FAIL_S = 30.0
"""munge, and with it Slurm, refuses credentials at 300 s; certificates and rendezvous earlier."""

_ENOUGH_TO_COMPARE = 3

ABOUT = About(
    what="The clocks of all nodes show the same time.",
    why="A skewed clock breaks Slurm's credentials, certificates and file time stamps, and makes"
    " logs of different ranks impossible to put in order.",
    how="date +%s.%N on each node less the client's time and half of a round trip; from three"
    " nodes on, compared with their median, so that a wrong clock of the client fails nobody.",
    fix="Let chrony or ntpd run on the node, and step the clock once: chronyc makestep.",
    source="munge(7): a credential lives 300 s; warn above 1 s, fail above 30 s",
)


def judge(evidence: Evidence) -> Judgement:
    """Compare every clock with the median of all."""
    skews = {
        node.name: node.reach.clock_skew_s
        for node in evidence.nodes
        if node.reach.clock_skew_s is not None
    }
    middle = median(skews.values()) if len(skews) >= _ENOUGH_TO_COMPARE else 0.0
    for node in evidence.nodes:
        if node.name in skews:
            yield node.name, _rule(skews[node.name] - middle)
        elif node.reach.via == "local":
            yield node.name, Ruling(verdict=Verdict.SKIP, summary="the clock of this machine")
        else:
            yield node.name, Ruling(verdict=Verdict.UNKNOWN, summary="clock was not read")
    if abs(middle) > _WARN_S:
        yield (
            None,
            Ruling(
                verdict=Verdict.WARN,
                summary="this machine's clock differs from that of the nodes",
                evidence=f"the nodes are {middle:+.1f} s off",
                hint="the nodes agree with each other; mend the clock of this machine",
                command="timedatectl",
            ),
        )


def _rule(skew_s: float) -> Ruling:
    if abs(skew_s) <= _WARN_S:
        return passed("clock agrees with the others")
    return Ruling(
        verdict=Verdict.FAIL if abs(skew_s) > _FAIL_S else Verdict.WARN,
        summary=f"clock is {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}",
        evidence=f"{skew_s:+.2f} s",
        hint="let chrony or ntpd run there; step the clock once: chronyc makestep",
        command="chronyc tracking || timedatectl",
    )


CHECK = Check(
    id="HOST001",
    name="host-clock",
    about=ABOUT,
    probes=(),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
