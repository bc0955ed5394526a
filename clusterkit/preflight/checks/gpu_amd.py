"""GPU: AMD's GPUs: whether they are there, alike, cool and without memory errors."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import Part, known, node_check, same_check, uniform
from clusterkit.preflight.checks.each_gpu import by_gpu
from clusterkit.preflight.checks.gpu_speed import heat
from clusterkit.preflight.checks.results import Result, Results, advice, ok, skip
from clusterkit.preflight.checks.types import Evidence, Tier, check
from clusterkit.preflight.probes.gpu import amd_gpus
from clusterkit.preflight.probes.gpu.amd_gpus import AmdGpu, AmdGpus


@check("GPU023", "gpu-amd", amd_gpus.PROBE, tier=Tier.ROUND_TRIP)
def _amd(evidence: Evidence) -> Results:
    probe, required = amd_gpus.PROBE, evidence.job.gpus_per_node
    part, few = Part(name="AMD GPU", advice=advice("GPU023", "none")), advice("GPU023")
    if required is None:
        yield from uniform(
            evidence, probe, _models, what="AMD GPUs", odd=Verdict.FAIL, hint=few.hint, part=part
        )
        return
    found, results = known(evidence, probe, part=part)
    yield from results
    for name, facts in found.items():
        short = len(facts.gpus) < required
        expectation = f"{_models(facts)}, the job wants {required}"
        yield name, few.fail(expectation) if short else ok(_models(facts))


def _models(facts: AmdGpus) -> str:
    names = " + ".join(sorted({gpu.name or "AMD GPU" for gpu in facts.gpus}))
    return f"{len(facts.gpus)} x {names}"


@same_check("GPU024", "gpu-amd-driver", amd_gpus.PROBE, "amdgpu driver", Verdict.FAIL)
def _amd_driver(facts: AmdGpus) -> str | None:
    return facts.driver


@node_check("GPU025", "gpu-amd-temperature", amd_gpus.PROBE)
def _amd_temperature(facts: AmdGpus) -> Iterator[Result]:
    hot = advice("GPU025")
    found = ((gpu.index, heat(hot, gpu.junction_c, gpu.margin_c)) for gpu in facts.gpus)
    return by_gpu(found, ok("temperatures are fine"))


@node_check("GPU028", "gpu-amd-ecc", amd_gpus.PROBE)
def _amd_ecc(facts: AmdGpus) -> Iterator[Result]:
    found = ((gpu.index, _uncorrected(gpu)) for gpu in facts.gpus)
    return by_gpu(found, ok("no uncorrected memory errors"))


def _uncorrected(gpu: AmdGpu) -> Result | None:
    if gpu.uncorrected is None:
        return skip("no errors are told (rocm-smi, or no ECC)")
    summary = f"uncorrected ECC errors since the driver was loaded: {gpu.uncorrected}"
    return advice("GPU028").fail(summary) if gpu.uncorrected else None
