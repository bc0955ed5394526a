"""GPU014: GPUs that are hot before the job has even begun."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling
from clusterkit.preflight.checks.by_gpu import by_gpu
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu

_WARM_C = 85.0
"""Above this, no data-centre GPU has much left: they slow down between 87 and 98 C."""
_NEAR_C = 10.0
"""Degrees from the GPU's own slowdown, where the driver says how far that is."""


def _judge(evidence: Evidence) -> Judgement:
    return by_gpu(evidence, _rule, "temperatures are fine")


def _rule(gpu: Gpu) -> Ruling | None:
    if gpu.temperature_c is None:
        return Ruling(verdict=Verdict.SKIP, summary="no temperature sensor")
    hint = "look at fans, inlets and the neighbours of the node"
    command = f"nvidia-smi -q -d TEMPERATURE -i {gpu.index}"
    at = f"{gpu.temperature_c:.0f} C"
    if gpu.margin_c is not None and gpu.margin_c <= 0:
        summary = f"{at}, at its slowdown limit"
        return Ruling(verdict=Verdict.FAIL, summary=summary, hint=hint, command=command)
    if gpu.margin_c is not None and gpu.margin_c < _NEAR_C:
        summary = f"{at}, {gpu.margin_c:.0f} C from its slowdown"
        return Ruling(verdict=Verdict.WARN, summary=summary, hint=hint, command=command)
    if gpu.temperature_c > _WARM_C:
        return Ruling(verdict=Verdict.WARN, summary=at, hint=hint, command=command)
    return None


CHECK = Check(
    id="GPU014",
    name="gpu-temperature",
    about=About(
        what="No GPU is above 85 C or within 10 C of the temperature at which it slows down.",
        why="A GPU that is hot before the job starts will be slowed down in it.",
        how="`temperature.gpu`, and the distance from the slowdown by `temperature.gpu.tlimit` or "
        "`nvidia-smi -q -d TEMPERATURE`. At the slowdown limit it fails.",
        fix="Mend the cooling; leave the node out until then.",
        source="The GPU's own limits, as nvidia-smi states them; 85 C where it states none.",
    ),
    probes=(nvidia_gpus.PROBE,),
    judge=_judge,
)
