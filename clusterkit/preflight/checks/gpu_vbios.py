"""GPU005: one VBIOS version on all nodes."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Tier, uniform
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import NvidiaGpus


def _judge(evidence: Evidence) -> Judgement:
    return uniform(
        evidence,
        nvidia_gpus.PROBE,
        _versions,
        what="VBIOS",
        odd=Verdict.WARN,
        hint="plan a firmware update; it may explain GPUs that clock or fail differently",
    )


def _versions(facts: NvidiaGpus) -> str | None:
    return ", ".join(sorted({gpu.vbios for gpu in facts.gpus if gpu.vbios})) or None


CHECK = Check(
    id="GPU005",
    name="gpu-vbios",
    about=About(
        what="All GPUs have the same VBIOS.",
        why="Firmware sets power and clock limits; one that differs makes a GPU differ.",
        how="`vbios_version` of `nvidia-smi --query-gpu`, by majority over the nodes of the job.",
        fix="Update the firmware of the odd nodes when work allows.",
        source="Majority vote over the nodes of the job; no list to keep.",
    ),
    probes=(nvidia_gpus.PROBE,),
    judge=_judge,
    tier=Tier.ROUND_TRIP,
)
