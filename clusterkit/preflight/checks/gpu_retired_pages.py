"""GPU010: retired memory pages of GPUs before Ampere."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling
from clusterkit.preflight.checks.by_gpu import by_gpu
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu

_SINGLE_BIT_MANY = 60
"""A board is to be replaced at 64 (NVIDIA Dynamic Page Retirement); AWS warns above 60."""


def _judge(evidence: Evidence) -> Judgement:
    return by_gpu(evidence, _rule, "no retired pages to act on")


def _rule(gpu: Gpu) -> Ruling | None:
    command = f"nvidia-smi -q -d PAGE_RETIREMENT -i {gpu.index}"
    if gpu.retired_double_bit:
        return Ruling(
            verdict=Verdict.FAIL,
            summary=f"pages retired after double-bit errors: {gpu.retired_double_bit}",
            hint="leave the node out and have the GPU tested or replaced",
            command=command,
        )
    if gpu.retirement_pending:
        return Ruling(
            verdict=Verdict.FAIL,
            summary="a page waits to be retired",
            hint="reset the GPU or reboot the node",
            command=command,
        )
    if gpu.retired_single_bit is not None and gpu.retired_single_bit > _SINGLE_BIT_MANY:
        return Ruling(
            verdict=Verdict.WARN,
            summary=f"pages retired after single-bit errors: {gpu.retired_single_bit}",
            hint="the GPU nears its limit of 64: plan to replace it",
            command=command,
        )
    if gpu.retired_double_bit is None:
        return Ruling(verdict=Verdict.SKIP, summary="no page retirement (before Ampere only)")
    return None


CHECK = Check(
    id="GPU010",
    name="gpu-retired-pages",
    about=About(
        what="No page of GPU memory waits to be retired or was retired after a double-bit error.",
        why="Until the reset the bad page is in use, and the next access kills the job.",
        how="`retired_pages.*` of `nvidia-smi --query-gpu`; GPUs since Ampere remap rows instead.",
        fix="Reset the GPU or reboot; replace a GPU with double-bit errors or 64 retired pages.",
        source="NVIDIA Dynamic Page Retirement; limits as in AWS's GPU health check.",
    ),
    probes=(nvidia_gpus.PROBE,),
    judge=_judge,
)
