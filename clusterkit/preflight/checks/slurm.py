"""SLURM: what the controller thinks of the nodes, and whether it is right."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import each, machine_check, same_on_all
from clusterkit.preflight.checks.results import Result, Results, advice, ok, skip, unknown
from clusterkit.preflight.checks.types import Evidence, NodeFacts, Tier, check
from clusterkit.preflight.probes.gpu import nvidia_list
from clusterkit.preflight.probes.host import system
from clusterkit.transport import slurm_nodes
from clusterkit.transport.probe import LATER, Missing, PreflightJob
from clusterkit.transport.slurm_nodes import CLOSED, RESERVED, SlurmNode, asleep, faults


def _no_slurm(job: PreflightJob) -> str | None:
    return None if job.kind == "slurm" else "not a Slurm cluster"


@check("SLURM001", "slurm-state", slurm_nodes.PROBE, skip_if=_no_slurm)
def _state(evidence: Evidence) -> Results:
    yield from each(evidence, slurm_nodes.PROBE, _state_of)
    for node in evidence.unreached:  # it was Slurm that was asked, and not the node
        facts = node.of(slurm_nodes.PROBE)
        if not isinstance(facts, Missing):
            yield node.name, _state_of(facts)


def _state_of(node: SlurmNode) -> Result:
    """Fail nodes that get no job; warn of maintenance and reservations.

    One that is powered down is no fault: Slurm starts it for the job, and then it is checked.
    """
    odd_states = {**RESERVED, "BLOCKED": "blocked"}
    bad = list(dict.fromkeys(CLOSED[state] for state in faults(node.states) if state in CLOSED))
    odd = list(dict.fromkeys(odd_states[state] for state in node.states if state in odd_states))
    sleeps = asleep(node.states)
    if not bad and not odd:
        return skip(f"{sleeps}: {LATER}") if sleeps else ok("Slurm would start a job there")
    signed = f" [{node.reason_by}@{node.reason_at}]" if node.reason_by else ""
    states = ", ".join(filter(None, (*bad, *odd, sleeps)))
    return advice("SLURM001", "" if bad else "reserved").result(
        Verdict.FAIL if bad else Verdict.WARN,
        states + (f": {node.reason}" if node.reason else ""),
        f"{'+'.join(node.states)} {node.reason}{signed}".strip(),
    )


@machine_check(
    *("SLURM002", "slurm-gres", slurm_nodes.PROBE, system.PROBE, nvidia_list.PROBE),
    skip_if=_no_slurm,
)
def _gres(node: NodeFacts, job: PreflightJob) -> Result:
    required = job.gpus_per_node if job.uses_gpus else None
    slurm, fewer = node.need(slurm_nodes.PROBE), advice("SLURM002", "fewer")
    if slurm.gres is None:
        return unknown("Slurm does not tell its Gres")
    configured = slurm.gres.get("gpu", 0)
    if required is not None and 0 < configured < required:
        return fewer.fail(f"Slurm has {configured} GPUs there, the job wants {required}")
    seen = _seen(node)
    if configured == 0:
        # Sites that hand out whole nodes need no Gres.
        return skip("Slurm does not count its GPUs")
    counts = f"Slurm counts {configured} GPUs, the driver {seen}"
    if seen == configured:
        return ok(f"Slurm and the driver count {configured} GPUs")
    return fewer.fail(counts) if seen < configured else advice("SLURM002", "more").warn(counts)


def _seen(node: NodeFacts) -> int:
    """Return the GPUs of the machine; a task of srun may see fewer of them than there are."""
    machine, listed = node.of(system.PROBE), node.of(nvidia_list.PROBE)
    there = 0 if isinstance(machine, Missing) else machine.nvidia_gpus
    if there and (node.reach.via == "srun" or isinstance(listed, Missing)):
        return there
    return len(node.need(nvidia_list.PROBE).gpus)


@check("SLURM003", "slurm-features", slurm_nodes.PROBE, tier=Tier.ROUND_TRIP, skip_if=_no_slurm)
@same_on_all(slurm_nodes.PROBE, "kind of node", odd=Verdict.WARN, hint=advice("SLURM003").hint)
def _features(node: SlurmNode) -> str | None:
    gres = ",".join(f"{name}:{count}" for name, count in sorted((node.gres or {}).items()))
    return " ".join(filter(None, (gres, ",".join(sorted(node.features))))) or None
