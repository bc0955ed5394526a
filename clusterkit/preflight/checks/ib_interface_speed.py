"""IB010: whether a network interface is as fast as on most nodes."""

from __future__ import annotations

from collections import Counter, defaultdict

from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    Tier,
    known,
    passed,
)
from clusterkit.preflight.probes.net.interfaces import PROBE

ABOUT = About(
    what="An interface that is up has the speed that the interface of the same name has on most"
    " nodes.",
    why="One port that negotiated 1 Gb/s instead of 25 slows the data loading and the start of a"
    " job, and every collective over TCP.",
    how="/sys/class/net/*/speed; virtual machines often do not say.",
    fix="Check cable and switch port; `ethtool NAME` shows what both sides offer.",
    source="majority of the job's own nodes",
)


def judge(evidence: Evidence) -> Judgement:
    """Name the interfaces that are slower than on most nodes."""
    facts, rulings = known(evidence, PROBE)
    yield from rulings
    votes: dict[str, Counter[int]] = defaultdict(Counter)
    for interfaces in facts.values():
        for interface in interfaces:
            if interface.speed_mbps is not None:
                votes[interface.name][interface.speed_mbps] += 1
    usual = {
        name: speed
        for name, seen in votes.items()
        for speed, n in seen.most_common(1)
        if n * 2 > seen.total()
    }
    for node, interfaces in facts.items():
        measured = [(i.name, i.speed_mbps) for i in interfaces if i.speed_mbps is not None]
        slow = [(n, speed) for n, speed in measured if speed < usual.get(n, 0)]
        if not measured:
            yield node, Ruling(verdict=Verdict.SKIP, summary="interfaces do not say their speed")
        elif not slow:
            yield node, passed("interfaces are as fast as on most nodes")
        else:
            name, speed = slow[0]
            yield (
                node,
                Ruling(
                    verdict=Verdict.WARN,
                    summary=f"{name} runs at {speed} Mb/s, on most nodes {usual[name]}",
                    evidence=", ".join(f"{n} {s} Mb/s" for n, s in slow),
                    hint="check the cable and the switch port",
                    command=f"ethtool {quote(name)}",
                ),
            )


CHECK = Check(
    id="IB010",
    name="ib-interface-speed",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
