"""GPU024: one AMD driver on all nodes."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Tier, uniform
from clusterkit.preflight.probes.gpu import amd_gpus


def _judge(evidence: Evidence) -> Judgement:
    return uniform(
        evidence,
        amd_gpus.PROBE,
        lambda facts: facts.driver,
        what="amdgpu driver",
        odd=Verdict.FAIL,
        hint="install the driver that most nodes have, then reboot; or leave the node out",
    )


CHECK = Check(
    id="GPU024",
    name="gpu-amd-driver",
    about=About(
        what="All nodes run the same amdgpu driver.",
        why="With mixed drivers RCCL may choose different features on each side.",
        how="`amd-smi static --driver`, else `rocm-smi --showdriverversion`, by majority over the"
        " nodes of the job.",
        fix="Update the odd nodes and reboot them.",
        source="Majority vote over the nodes of the job; no list to keep.",
    ),
    probes=(amd_gpus.PROBE,),
    judge=_judge,
    tier=Tier.ROUND_TRIP,
)
