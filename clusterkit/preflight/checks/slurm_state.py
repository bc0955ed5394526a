"""SLURM001: whether Slurm would start a job on the node, and why not."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.transport.probe import LATER, Missing
from clusterkit.transport.slurm_nodes import PROBE, SlurmNode, asleep, faults

_BAD = {
    "DRAIN": "drained", "DRAINED": "drained", "DRAINING": "drained", "DOWN": "down",
    "ERROR": "in error", "FAIL": "failing", "FAILING": "failing", "FUTURE": "not there yet",
    "INVAL": "registered with less than configured",
    "INVALID_REG": "registered with less than configured",
    "NOT_RESPONDING": "not responding", "NO_RESPOND": "not responding", "UNKNOWN": "unknown",
}  # fmt: skip
_ODD = {
    "MAINTENANCE": "in maintenance", "MAINT": "in maintenance", "RESERVED": "reserved",
    "BLOCKED": "blocked",
}  # fmt: skip

ABOUT = About(
    what="Slurm would start a job on the node: it is not down, drained, failing or silent.",
    why="A job that names such a node waits for ever; the reason that was left says whom to ask.",
    how="State and Reason of scontrol show node, asked once for all nodes.",
    fix="Ask whoever signed the reason. Leave the node out meanwhile: --exclude.",
    source="man scontrol and man sinfo, NODE STATE CODES, Slurm 20.11 to 25.11",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail nodes that get no job; warn of maintenance and reservations.

    One that is powered down is no fault: Slurm starts it for the job, and then it is checked.
    """
    if evidence.job.kind != "slurm":
        yield None, Ruling(verdict=Verdict.SKIP, summary="not a Slurm cluster")
        return
    yield from each(evidence, PROBE, _rule)
    for node in evidence.unreached:  # it was Slurm that was asked, and not the node
        facts = node.of(PROBE)
        if not isinstance(facts, Missing):
            yield node.name, _rule(facts)


def _rule(node: SlurmNode) -> Ruling:
    bad = list(dict.fromkeys(_BAD[state] for state in faults(node.states) if state in _BAD))
    odd = list(dict.fromkeys(_ODD[state] for state in node.states if state in _ODD))
    sleeps = asleep(node.states)
    if not bad and not odd:
        if sleeps:
            return Ruling(verdict=Verdict.SKIP, summary=f"{sleeps}: {LATER}")
        return passed("Slurm would start a job there")
    signed = f" [{node.reason_by}@{node.reason_at}]" if node.reason_by else ""
    return Ruling(
        verdict=Verdict.FAIL if bad else Verdict.WARN,
        summary=", ".join(filter(None, (*bad, *odd, sleeps)))
        + (f": {node.reason}" if node.reason else ""),
        evidence=f"{'+'.join(node.states)} {node.reason}{signed}".strip(),
        hint="ask whoever set it, or leave the node out with --exclude",
        command="sinfo --list-reasons --long" if bad else "scontrol show reservation",
    )


CHECK = Check(id="SLURM001", name="slurm-state", about=ABOUT, probes=(PROBE,), judge=judge)
