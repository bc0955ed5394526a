"""GPU009: rows of GPU memory that are to be, or could not be, replaced by spare ones."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling
from clusterkit.preflight.checks.by_gpu import by_gpu
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu


def _judge(evidence: Evidence) -> Judgement:
    return by_gpu(evidence, _rule, "no row waits to be remapped")


def _rule(gpu: Gpu) -> Ruling | None:
    command = f"nvidia-smi -q -d ROW_REMAPPER -i {gpu.index}"
    if gpu.remap_failed:
        return Ruling(
            verdict=Verdict.FAIL,
            summary="a memory row could not be remapped",
            hint="no spare rows are left: have the GPU replaced",
            command=command,
        )
    if gpu.remap_pending:
        return Ruling(
            verdict=Verdict.FAIL,
            summary="a row remap is pending",
            hint="reset the GPU or reboot the node; the remap takes effect then",
            command=command,
        )
    if gpu.remapped_uncorrectable:
        return Ruling(
            verdict=Verdict.WARN,
            summary=f"rows remapped after uncorrectable errors: {gpu.remapped_uncorrectable}",
            hint="it works; replace it if the number grows",
            command=command,
        )
    if gpu.remap_pending is None or gpu.remap_failed is None:
        # A GPU in MIG mode has a row remapper and does not tell: neither well nor ill.
        return Ruling(
            verdict=Verdict.UNKNOWN if gpu.mig else Verdict.SKIP,
            summary="row remapping is not told in MIG mode" if gpu.mig else "no row remapping",
        )
    return None


CHECK = Check(
    id="GPU009",
    name="gpu-row-remap",
    about=About(
        what="No GPU waits for a reset to replace a bad memory row, and none has run out of them.",
        why="Until the reset the bad row is in use, and the next access kills the job.",
        how="`remapped_rows.{pending,failure,uncorrectable}` of `nvidia-smi`; the values are the "
        "words Yes and No, or N/A where there is no remapper (or in MIG mode: unknown).",
        fix="Pending: reset the GPU or reboot. Failure: replace the GPU.",
        source="NVIDIA GPU memory error management (A100 and later), Xid 63 and 64. The word No "
        "compared as a number is why other health checks miss this.",
    ),
    probes=(nvidia_gpus.PROBE,),
    judge=_judge,
)
