"""GPU015: GPUs whose power limit was lowered."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling
from clusterkit.preflight.checks.by_gpu import by_gpu
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu

_SLACK_W = 1.0


def _judge(evidence: Evidence) -> Judgement:
    return by_gpu(evidence, _rule, "power limits are not lowered")


def _rule(gpu: Gpu) -> Ruling | None:
    limit, default = gpu.power_limit_w, gpu.default_power_limit_w
    if limit is None or default is None:
        return Ruling(verdict=Verdict.SKIP, summary="no power limit is told")
    if limit >= default - _SLACK_W:
        return None
    return Ruling(
        verdict=Verdict.WARN,
        summary=f"power limit {limit:.0f} W, its default is {default:.0f} W",
        hint="unless the site means it, set it back; all GPUs of a job should have the same",
        command=f"nvidia-smi -q -d POWER -i {gpu.index}",
    )


CHECK = Check(
    id="GPU015",
    name="gpu-power-limit",
    about=About(
        what="No GPU has a power limit below its default.",
        why="It computes more slowly than its fellows, and every step waits for it.",
        how="`enforced.power.limit` against `power.default_limit` of `nvidia-smi --query-gpu`.",
        fix="`nvidia-smi -i N -pl WATT` as root, unless the site lowers it on purpose.",
        source="The GPU's own default.",
    ),
    probes=(nvidia_gpus.PROBE,),
    judge=_judge,
)
