"""GPU028: AMD GPUs with memory errors that could not be corrected."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.checks.by_gpu import gpus
from clusterkit.preflight.probes.gpu import amd_gpus
from clusterkit.preflight.probes.gpu.amd_gpus import AmdGpus


def _judge(evidence: Evidence) -> Judgement:
    return each(evidence, amd_gpus.PROBE, _rule)


def _rule(facts: AmdGpus) -> Ruling:
    told = {gpu.index: gpu.uncorrected for gpu in facts.gpus if gpu.uncorrected is not None}
    if not told:
        return Ruling(verdict=Verdict.SKIP, summary="no errors are told (rocm-smi, or no ECC)")
    bad = {index: count for index, count in told.items() if count}
    if not bad:
        return passed("no uncorrected memory errors")
    return Ruling(
        verdict=Verdict.FAIL,
        summary=f"{gpus(bad)}: uncorrected ECC errors since the driver was loaded",
        evidence=", ".join(f"GPU {index}: {count}" for index, count in bad.items()),
        hint="reset the GPU or reboot before the job; have it replaced if they come back",
        command="amd-smi metric --ecc --ecc-blocks; amd-smi bad-pages",
    )


CHECK = Check(
    id="GPU028",
    name="gpu-amd-ecc",
    about=About(
        what="No AMD GPU has met a memory error that ECC could not correct.",
        why="The process that reads such a cell is killed, and the job with it.",
        how="`total_uncorrectable_count` of `amd-smi metric --ecc`; rocm-smi alone does not tell.",
        fix="Reset the GPU (`amd-smi reset --gpureset`, root) or reboot; replace it if they recur.",
        source="AMD SMI documentation, metric --ecc; the limit of GPU008.",
    ),
    probes=(amd_gpus.PROBE,),
    judge=_judge,
)
