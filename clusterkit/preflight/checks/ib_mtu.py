"""IB009: whether a network interface has the same MTU on all nodes."""

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
    what="An interface that is up has the MTU that the interface of the same name has on most"
    " nodes.",
    why="Small packets pass, large ones vanish: jobs start, then hang in the first large"
    " collective or checkpoint.",
    how="/sys/class/net/*/mtu of interfaces that are up; those of containers and virtual machines"
    " are left out.",
    fix="`ip link set dev NAME mtu N` now, and in the network configuration of the node.",
    source="majority of the job's own nodes",
)


def judge(evidence: Evidence) -> Judgement:
    """Name the interfaces with another MTU than on most nodes."""
    facts, rulings = known(evidence, PROBE)
    yield from rulings
    votes: dict[str, Counter[int]] = defaultdict(Counter)
    for interfaces in facts.values():
        for interface in interfaces:
            votes[interface.name][interface.mtu] += 1
    usual = {name: seen.most_common(1)[0] for name, seen in votes.items()}
    for node, interfaces in facts.items():
        odd = [
            (interface, mtu)
            for interface in interfaces
            for mtu, n in (usual[interface.name],)
            if interface.mtu != mtu or n * 2 <= votes[interface.name].total()
        ]
        if not interfaces:
            yield node, Ruling(verdict=Verdict.SKIP, summary="no network interface is up")
        elif not odd:
            yield node, passed("MTU is the same on all nodes")
        else:
            first, mtu = odd[0]
            tied = usual[first.name][1] * 2 <= votes[first.name].total()
            seen = ", ".join(f"{value}: {n}" for value, n in sorted(votes[first.name].items()))
            yield (
                node,
                Ruling(
                    verdict=Verdict.WARN if tied else Verdict.FAIL,
                    summary=f"MTU of {first.name} differs between nodes and no value has a majority"
                    if tied
                    else f"MTU of {first.name} is {first.mtu}, on most nodes {mtu}",
                    evidence=f"{first.name} {seen}",
                    hint="set the same MTU on all nodes and switches",
                    command=f"ip link show {quote(first.name)}",
                ),
            )


CHECK = Check(
    id="IB009", name="ib-mtu", about=ABOUT, probes=(PROBE,), judge=judge, tier=Tier.ROUND_TRIP
)
