"""GPU025: AMD GPUs that are hot before the job has even begun."""

from __future__ import annotations

from clusterkit.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.checks.by_gpu import gpus
from clusterkit.findings import Verdict
from clusterkit.probes import amd_gpus
from clusterkit.probes.amd_gpus import AmdGpus

_HOT_C = 85.0
"""As for NVIDIA's; Instinct slows down at a junction of about 100 C."""


def _judge(evidence: Evidence) -> Judgement:
    return each(evidence, amd_gpus.PROBE, _rule)


def _rule(facts: AmdGpus) -> Ruling:
    told = {gpu.index: gpu.junction_c for gpu in facts.gpus if gpu.junction_c is not None}
    if not told:
        return Ruling(verdict=Verdict.SKIP, summary="no temperature is told")
    hot = {index: degrees for index, degrees in told.items() if degrees > _HOT_C}
    if not hot:
        return passed("temperatures are fine")
    return Ruling(
        verdict=Verdict.WARN,
        summary=f"{gpus(hot)}: up to {max(hot.values()):.0f} C",
        hint="look at fans, inlets and the neighbours of the node",
        command="rocm-smi --showtemp",
    )


CHECK = Check(
    id="GPU025",
    name="gpu-amd-temperature",
    about=About(
        what="No AMD GPU is above 85 C.",
        why="A GPU that is hot before the job starts will be slowed down in it.",
        how="`rocm-smi --showtemp --json`, the junction sensor, else the edge.",
        fix="Mend the cooling; leave the node out until then.",
        source="The same limit as for NVIDIA GPUs.",
    ),
    probes=(amd_gpus.PROBE,),
    judge=_judge,
)
