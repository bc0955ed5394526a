"""GPU007: what the driver itself says has to be done about a GPU."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling
from clusterkit.preflight.checks.by_gpu import by_gpu
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu

_NOTHING = "None"


def _judge(evidence: Evidence) -> Judgement:
    return by_gpu(evidence, _rule, "the driver asks for no recovery")


def _rule(gpu: Gpu) -> Ruling | None:
    if gpu.recovery_action is None:
        return Ruling(verdict=Verdict.SKIP, summary="this driver names no recovery action")
    if gpu.recovery_action == _NOTHING:
        return None
    return Ruling(
        verdict=Verdict.FAIL,
        summary=f"the driver asks for: {gpu.recovery_action}",
        hint="leave the node out of the job until that is done",
        command=f"nvidia-smi -q -i {gpu.index} | grep -i -A2 -e recovery -e reset",
    )


CHECK = Check(
    id="GPU007",
    name="gpu-recovery-action",
    about=About(
        what="The driver asks for no reset, reboot or drain of a GPU.",
        why="It is the driver's own sum of all errors that it has seen: the best single field.",
        how="`gpu_recovery_action` of `nvidia-smi --query-gpu` (driver 555 or so and later), else "
        "`Reset Required` of `nvidia-smi -q`.",
        fix="Do what it says: reset the GPU, drain it and reset, or reboot the node.",
        source="NVML, nvmlDeviceGpuRecoveryAction_t: anything but None wants action.",
    ),
    probes=(nvidia_gpus.PROBE,),
    judge=_judge,
)
