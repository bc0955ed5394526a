"""GPU: AMD's GPUs: whether they are there, alike, cool and without memory errors."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import Part, each_node, known, same_check, uniform
from clusterkit.preflight.checks.each_gpu import gpus
from clusterkit.preflight.checks.gpu_speed import NEAR_C, WARM_C
from clusterkit.preflight.checks.results import Result, Results, advice, ok, skip
from clusterkit.preflight.checks.types import Evidence, Tier, check
from clusterkit.preflight.probes.gpu import amd_gpus
from clusterkit.preflight.probes.gpu.amd_gpus import AmdGpus


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


@check("GPU025", "gpu-amd-temperature", amd_gpus.PROBE)
@each_node(amd_gpus.PROBE)
def _amd_temperature(facts: AmdGpus) -> Result:
    known = {gpu.index: gpu.junction_c for gpu in facts.gpus if gpu.junction_c is not None}
    if not known:
        return skip("no temperature is told")
    limits = {gpu.index: gpu.slowdown_c or WARM_C + NEAR_C for gpu in facts.gpus}
    hot = {i: c for i, c in known.items() if c > min(WARM_C, limits[i] - NEAR_C)}
    if not hot:
        return ok("temperatures are fine")
    slowed = {g.index for g in facts.gpus if g.slowdown_c and hot.get(g.index, 0) >= g.slowdown_c}
    at = f"{gpus(slowed or hot)}: up to {max(hot.values()):.0f} C"
    if slowed:
        return advice("GPU025").fail(f"{at}, at its slowdown limit")
    return advice("GPU025").warn(at)


@check("GPU028", "gpu-amd-ecc", amd_gpus.PROBE)
@each_node(amd_gpus.PROBE)
def _amd_ecc(facts: AmdGpus) -> Result:
    known = {gpu.index: gpu.uncorrected for gpu in facts.gpus if gpu.uncorrected is not None}
    if not known:
        return skip("no errors are told (rocm-smi, or no ECC)")
    bad = {index: count for index, count in known.items() if count}
    if not bad:
        return ok("no uncorrected memory errors")
    counts = ", ".join(f"GPU {index}: {count}" for index, count in bad.items())
    summary = f"{gpus(bad)}: uncorrected ECC errors since the driver was loaded"
    return advice("GPU028").fail(summary, counts)
