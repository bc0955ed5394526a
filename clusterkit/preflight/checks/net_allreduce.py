"""NET005: whether an all-reduce between each two nodes comes to an end, with the right sum."""

from __future__ import annotations

from collections.abc import Mapping

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, Tier, passed
from clusterkit.preflight.checks.net_evidence import Pair, absent, blame, facts_of, went_away
from clusterkit.preflight.probes.net.allreduce import AGAIN, PROBE

ABOUT = About(
    what="An all-reduce through torch.distributed (NCCL where the job uses GPUs, else Gloo)"
    " between two nodes comes to an end and gives the right sum.",
    why="It is what training does: libraries, interfaces, HCAs, GPUs and firewalls all at once.",
    how="All nodes in pairs; whoever is in a pair that failed is paired once more, with a node"
    " that is known to be good, so that the bad one is told from its partner. The job's own"
    " Python and variables; each rank is a process that is killed when it hangs.",
    fix="Run the job with NCCL_DEBUG=INFO on the named node and a good one; compare interface,"
    " driver and library versions with those of a good node.",
    source="two-pass pairing as in GoogleCloudPlatform/cluster-health-scanner",
)


def judge(evidence: Evidence) -> Judgement:
    """Name the nodes that fail with good ones too, and pairs that fail only with each other."""
    yield from absent(evidence, PROBE)
    for node in [seen.name for seen in evidence.nodes if went_away(seen, PROBE)]:
        yield node, _fail("stopped answering during an all-reduce", {}, node)
    known = facts_of(evidence, PROBE).keys()
    said = _said(evidence)
    bad = {pair: why for pair, why in said.items() if why != "ok"}
    found = blame(bad, said)
    ruled = set(found.nodes)
    for node in found.nodes:
        yield node, _fail(f"an all-reduce with {node} fails whoever it is paired with", bad, node)
    for low, high in found.links:
        for node in sorted({low, high} - ruled):
            yield node, _fail(f"an all-reduce between {low} and {high} fails", bad, node)
        ruled |= {low, high}
    for node in sorted({node for pair in said for node in pair} - ruled):
        yield node, passed("an all-reduce with another node gives the right sum")
    for node in sorted(known - {node for pair in said for node in pair}):
        yield node, Ruling(verdict=Verdict.UNKNOWN, summary="no other node to be paired with")


def _said(evidence: Evidence) -> dict[Pair, str]:
    """Return how it went, by the node that says so and its partner."""
    known = facts_of(evidence, PROBE).keys()
    return {
        (node, exercise.peer): exercise.reason or exercise.status
        for probe in (PROBE, AGAIN)
        for node, facts in facts_of(evidence, probe).items()
        for exercise in facts.exercises
        if {node, exercise.peer} <= known
    }


def _fail(summary: str, bad: Mapping[Pair, str], node: str) -> Ruling:
    told = [f"{a} with {b}: {why}" for (a, b), why in sorted(bad.items()) if node in (a, b)]
    return Ruling(
        verdict=Verdict.FAIL,
        summary=summary,
        evidence="\n".join(told[:3]),
        hint="run with NCCL_DEBUG=INFO there and on a good node, and compare what they choose",
        command="env | grep -E 'NCCL|GLOO'; ip -br addr",
    )


CHECK = Check(
    id="NET005",
    name="net-allreduce",
    about=ABOUT,
    probes=(PROBE, AGAIN),
    judge=judge,
    tier=Tier.NETWORK,
)
