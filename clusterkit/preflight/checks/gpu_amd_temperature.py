"""GPU025: AMD GPUs that are hot before the job has even begun."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.checks.by_gpu import gpus
from clusterkit.preflight.probes.gpu import amd_gpus
from clusterkit.preflight.probes.gpu.amd_gpus import AmdGpus

_HOT_C = 85.0
"""As for NVIDIA's; Instinct slows down at a junction of about 100 C."""
_NEAR_C = 10.0
"""Degrees from the GPU's own slowdown, where the driver says what that is."""


def _judge(evidence: Evidence) -> Judgement:
    return each(evidence, amd_gpus.PROBE, _rule)


def _rule(facts: AmdGpus) -> Ruling:
    told = {gpu.index: gpu.junction_c for gpu in facts.gpus if gpu.junction_c is not None}
    if not told:
        return Ruling(verdict=Verdict.SKIP, summary="no temperature is told")
    limits = {gpu.index: gpu.slowdown_c or _HOT_C + _NEAR_C for gpu in facts.gpus}
    hot = {i: c for i, c in told.items() if c > min(_HOT_C, limits[i] - _NEAR_C)}
    if not hot:
        return passed("temperatures are fine")
    slowed = {gpu.index for gpu in facts.gpus if gpu.slowdown_c} & {
        i for i, c in hot.items() if c >= limits[i]
    }
    return Ruling(
        verdict=Verdict.FAIL if slowed else Verdict.WARN,
        summary=f"{gpus(slowed or hot)}: up to {max(hot.values()):.0f} C"
        + (", at its slowdown limit" if slowed else ""),
        hint="look at fans, inlets and the neighbours of the node",
        command="amd-smi metric --temperature || rocm-smi --showtemp",
    )


CHECK = Check(
    id="GPU025",
    name="gpu-amd-temperature",
    about=About(
        what="No AMD GPU is above 85 C or within 10 C of the temperature at which it slows down.",
        why="A GPU that is hot before the job starts will be slowed down in it.",
        how="`amd-smi metric --temperature` and `amd-smi static --limit`, else `rocm-smi"
        " --showtemp`: the junction (hotspot), else the edge. At the slowdown limit it fails.",
        fix="Mend the cooling; leave the node out until then.",
        source="The same limit as for NVIDIA GPUs.",
    ),
    probes=(amd_gpus.PROBE,),
    judge=_judge,
)
