"""GPU018: GPUs behind NVSwitches have joined their fabric."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling
from clusterkit.preflight.checks.by_gpu import by_gpu
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu

_DONE = "Completed"
_SUCCESS = "Success"


def _judge(evidence: Evidence) -> Judgement:
    return by_gpu(evidence, _rule, "the NVLink fabric is ready")


def _rule(gpu: Gpu) -> Ruling | None:
    if gpu.fabric_state is None:
        return Ruling(verdict=Verdict.SKIP, summary="no NVLink fabric")
    if gpu.fabric_state == _DONE and gpu.fabric_status in {None, _SUCCESS}:
        return None
    status = f" ({gpu.fabric_status})" if gpu.fabric_status else ""
    return Ruling(
        verdict=Verdict.FAIL,
        summary=f"fabric state is {gpu.fabric_state}{status}",
        hint="start the fabric manager of the driver's own version, then reset the GPUs",
        command="systemctl status nvidia-fabricmanager",
    )


CHECK = Check(
    id="GPU018",
    name="gpu-fabric",
    about=About(
        what="Every GPU behind NVSwitches has been registered by the fabric manager.",
        why="Until then CUDA itself fails to start on it (error 802, system not yet initialized).",
        how="`fabric.state` and `fabric.status` of `nvidia-smi`: Completed and Success. The "
        "service is not asked, because in virtual machines and on GB200 it runs elsewhere.",
        fix="Start nvidia-fabricmanager; its version has to be the driver's.",
        source="NVIDIA Fabric Manager User Guide.",
    ),
    probes=(nvidia_gpus.PROBE,),
    judge=_judge,
)
