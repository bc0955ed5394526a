"""SLURM002: whether the GPUs that Slurm gives away are there, and enough for the job."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    NodeFacts,
    Ruling,
    missing,
    passed,
)
from clusterkit.preflight.probes.gpu.nvidia_list import PROBE as LIST
from clusterkit.preflight.probes.host.system import PROBE as SYSTEM
from clusterkit.transport.probe import Missing
from clusterkit.transport.slurm_nodes import PROBE

ABOUT = About(
    what="The node has the GPUs that Slurm believes it has, and the job's count of them.",
    why="After a GPU has fallen off the bus Slurm still gives it away, and the job that gets it"
    " fails at its first CUDA call.",
    how="Gres of scontrol show node against nvidia-smi -L; in tasks of srun, which may see only"
    " some of the GPUs, against /proc/driver/nvidia/gpus.",
    fix="Drain the node and look at the kernel log for Xid 79; else correct gres.conf.",
    source="man gres.conf; Xid 79, GPU has fallen off the bus (NVIDIA Xid catalogue)",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail nodes on which the counts differ."""
    if evidence.job.kind != "slurm":
        yield None, Ruling(verdict=Verdict.SKIP, summary="not a Slurm cluster")
        return
    for node in evidence.nodes:
        yield node.name, _rule(node, evidence.job.gpus_per_node if evidence.job.uses_gpus else None)


def _rule(node: NodeFacts, wanted: int | None) -> Ruling:
    slurm, seen = node.of(PROBE), _seen(node)
    if isinstance(slurm, Missing) or slurm.gres is None:
        reason = Missing(verdict=Verdict.UNKNOWN, reason="Slurm does not tell its Gres")
        return missing(slurm if isinstance(slurm, Missing) else reason)
    configured = slurm.gres.get("gpu", 0)
    if wanted is not None and 0 < configured < wanted:
        return _fewer(f"Slurm has {configured} GPUs there, the job wants {wanted}")
    if isinstance(seen, Missing):
        return missing(seen)
    if configured == 0:
        # Sites that hand out whole nodes need no Gres.
        return Ruling(verdict=Verdict.SKIP, summary="Slurm does not count its GPUs")
    if seen == configured:
        return passed(f"Slurm and the driver count {configured} GPUs")
    said = f"Slurm counts {configured} GPUs, the driver {seen}"
    return _fewer(said) if seen < configured else _more(said)


def _seen(node: NodeFacts) -> int | Missing:
    """Return the GPUs of the machine; a task of srun may see fewer of them than there are."""
    system, listed = node.of(SYSTEM), node.of(LIST)
    held = 0 if isinstance(system, Missing) else system.nvidia_gpus
    if held and node.reach.via == "srun":
        return held
    if isinstance(listed, Missing):
        return held or listed
    return len(listed.gpus)


def _more(summary: str) -> Ruling:
    return Ruling(
        verdict=Verdict.WARN,
        summary=summary,
        hint="Slurm never gives the others away: correct gres.conf and slurm.conf",
        command="scontrol show config | grep -i gres; nvidia-smi -L",
    )


def _fewer(summary: str) -> Ruling:
    return Ruling(
        verdict=Verdict.FAIL,
        summary=summary,
        hint="look for a GPU that has fallen off the bus (Xid 79), else correct gres.conf",
        command="nvidia-smi -L; dmesg | grep -i xid",
    )


CHECK = Check(
    id="SLURM002", name="slurm-gres", about=ABOUT, probes=(PROBE, SYSTEM, LIST), judge=judge
)
