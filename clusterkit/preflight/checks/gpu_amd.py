"""GPU: AMD's GPUs: whether they are there, alike, cool and without memory errors."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import Part, each_node, known, same_on_all, uniform
from clusterkit.preflight.checks.each_gpu import gpus
from clusterkit.preflight.checks.results import Advice, Result, Results, fail, ok, skip
from clusterkit.preflight.checks.types import Evidence, Tier, check
from clusterkit.preflight.probes.gpu import amd_gpus
from clusterkit.preflight.probes.gpu.amd_gpus import AmdGpus

_HINT = "run amd-smi there; leave the node out, or ask for fewer GPUs"
_PART = Part(name="AMD GPU", hint=_HINT, command="lspci -d 1002:")


@check("GPU023", "gpu-amd", amd_gpus.PROBE, tier=Tier.ROUND_TRIP)
def _amd(evidence: Evidence) -> Results:
    probe, required = amd_gpus.PROBE, evidence.job.gpus_per_node
    if required is None:
        yield from uniform(
            evidence, probe, _models, what="AMD GPUs", odd=Verdict.FAIL, hint=_HINT, part=_PART
        )
        return
    found, results = known(evidence, probe, part=_PART)
    yield from results
    for name, facts in found.items():
        if len(facts.gpus) < required:
            summary = f"{_models(facts)}, the job wants {required}"
            yield name, fail(summary, hint=_HINT, command="amd-smi list || rocm-smi")
        else:
            yield name, ok(_models(facts))


def _models(facts: AmdGpus) -> str:
    names = " + ".join(sorted({gpu.name or "AMD GPU" for gpu in facts.gpus}))
    return f"{len(facts.gpus)} x {names}"


@check("GPU024", "gpu-amd-driver", amd_gpus.PROBE, tier=Tier.ROUND_TRIP)
@same_on_all(
    amd_gpus.PROBE,
    "amdgpu driver",
    odd=Verdict.FAIL,
    hint="install the driver that most nodes have, then reboot; or leave the node out",
)
def _amd_driver(facts: AmdGpus) -> str | None:
    return facts.driver


_HOT_C = 85.0
"""As for NVIDIA's; Instinct slows down at a junction of about 100 C."""
_NEAR_C = 10.0
"""Degrees from the GPU's own slowdown, where the driver says what that is."""


@check("GPU025", "gpu-amd-temperature", amd_gpus.PROBE)
@each_node(amd_gpus.PROBE)
def _amd_temperature(facts: AmdGpus) -> Result:
    known = {gpu.index: gpu.junction_c for gpu in facts.gpus if gpu.junction_c is not None}
    if not known:
        return skip("no temperature is told")
    limits = {gpu.index: gpu.slowdown_c or _HOT_C + _NEAR_C for gpu in facts.gpus}
    hot = {i: c for i, c in known.items() if c > min(_HOT_C, limits[i] - _NEAR_C)}
    if not hot:
        return ok("temperatures are fine")
    advice = Advice(
        hint="look at fans, inlets and the neighbours of the node",
        command="amd-smi metric --temperature || rocm-smi --showtemp",
    )
    slowed = {g.index for g in facts.gpus if g.slowdown_c and hot.get(g.index, 0) >= g.slowdown_c}
    at = f"{gpus(slowed or hot)}: up to {max(hot.values()):.0f} C"
    return advice.fail(f"{at}, at its slowdown limit") if slowed else advice.warn(at)


@check("GPU028", "gpu-amd-ecc", amd_gpus.PROBE)
@each_node(amd_gpus.PROBE)
def _amd_ecc(facts: AmdGpus) -> Result:
    known = {gpu.index: gpu.uncorrected for gpu in facts.gpus if gpu.uncorrected is not None}
    if not known:
        return skip("no errors are told (rocm-smi, or no ECC)")
    bad = {index: count for index, count in known.items() if count}
    if not bad:
        return ok("no uncorrected memory errors")
    return fail(
        f"{gpus(bad)}: uncorrected ECC errors since the driver was loaded",
        ", ".join(f"GPU {index}: {count}" for index, count in bad.items()),
        hint="reset the GPU or reboot before the job; have it replaced if they come back",
        command="amd-smi metric --ecc --ecc-blocks; amd-smi bad-pages",
    )
