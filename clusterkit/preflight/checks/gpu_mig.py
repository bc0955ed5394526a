"""GPU019: GPUs that are cut into MIG devices."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling
from clusterkit.preflight.checks.by_gpu import by_gpu
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu


def _judge(evidence: Evidence) -> Judgement:
    return by_gpu(evidence, _rule, "MIG is off")


def _rule(gpu: Gpu) -> Ruling | None:
    if gpu.mig is None:
        return Ruling(verdict=Verdict.SKIP, summary="no MIG on this GPU")
    if not gpu.mig:
        return None
    return Ruling(
        verdict=Verdict.WARN,
        summary="MIG mode is on",
        hint="for training over several GPUs switch it off, or use other nodes",
        command="nvidia-smi -L",
    )


CHECK = Check(
    id="GPU019",
    name="gpu-mig",
    about=About(
        what="No GPU is in MIG mode.",
        why="MIG devices have no NVLink and no peer-to-peer access: NCCL copies through the host, "
        "and one process can use one device only.",
        how="`mig.mode.current` of `nvidia-smi --query-gpu`.",
        fix="`nvidia-smi -i N -mig 0` as root, with nothing running on the GPU.",
        source="NVIDIA Multi-Instance GPU User Guide, limitations.",
    ),
    probes=(nvidia_gpus.PROBE,),
    judge=_judge,
)
