"""GPU008: no memory errors that could not be corrected, and ECC switched on."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling
from clusterkit.preflight.checks.by_gpu import by_gpu
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu


def _judge(evidence: Evidence) -> Judgement:
    return by_gpu(evidence, _rule, "no uncorrected memory errors")


def _rule(gpu: Gpu) -> Ruling | None:
    command = f"nvidia-smi -q -d ECC -i {gpu.index}"
    if gpu.uncorrected:
        return Ruling(
            verdict=Verdict.FAIL,
            summary=f"uncorrected ECC errors since the driver was loaded: {gpu.uncorrected}",
            hint="reset the GPU before the job; replace it if they come back",
            command=command,
        )
    if gpu.uncorrected_ever:
        return Ruling(
            verdict=Verdict.WARN,
            summary=f"uncorrected ECC errors in its life, none since boot: {gpu.uncorrected_ever}",
            hint="watch it; one that gathers more should be replaced",
            command=command,
        )
    if gpu.uncorrected is None:
        return Ruling(
            verdict=Verdict.SKIP, summary="ECC is off" if gpu.ecc is False else "no ECC memory"
        )
    return None


CHECK = Check(
    id="GPU008",
    name="gpu-ecc",
    about=About(
        what="No GPU has met a memory error that ECC could not correct.",
        why="The process that reads such a cell is killed, and the job with it.",
        how="`ecc.errors.uncorrected.{volatile,aggregate}.total` of `nvidia-smi --query-gpu`. "
        "`N/A` is a GPU without ECC, not a count of 0. Since the driver was loaded fails, "
        "in the life of the GPU warns.",
        fix="Reset the GPU (`nvidia-smi --gpu-reset -i N`) or reboot; replace it if they return.",
        source="NVIDIA GPU memory error management; AWS and OCI health checks use the same limits.",
    ),
    probes=(nvidia_gpus.PROBE,),
    judge=_judge,
)
