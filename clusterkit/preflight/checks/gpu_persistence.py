"""GPU021: persistence mode."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling
from clusterkit.preflight.checks.by_gpu import by_gpu
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu


def _judge(evidence: Evidence) -> Judgement:
    return by_gpu(evidence, _rule, "persistence mode is on")


def _rule(gpu: Gpu) -> Ruling | None:
    if gpu.persistence is None:
        return Ruling(verdict=Verdict.SKIP, summary="no persistence mode")
    if gpu.persistence:
        return None
    return Ruling(
        verdict=Verdict.WARN,
        summary="persistence mode is off",
        hint="have nvidia-persistenced run at boot (root)",
        command="systemctl status nvidia-persistenced",
    )


CHECK = Check(
    id="GPU021",
    name="gpu-persistence",
    about=About(
        what="The driver stays loaded when no process uses a GPU.",
        why="Else each first CUDA call takes seconds, ECC counts start anew with each job, and "
        "ranks that start late run into time-outs.",
        how="`persistence_mode` of `nvidia-smi --query-gpu`. It is never switched here.",
        fix="Run nvidia-persistenced, or `nvidia-smi -pm 1` as root.",
        source="NVIDIA driver persistence; DCGM's deployment test fails on it.",
    ),
    probes=(nvidia_gpus.PROBE,),
    judge=_judge,
)
