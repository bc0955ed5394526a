"""GPU: what slows NVIDIA GPUs down: clocks, heat, power, and what measurements say."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import each, known
from clusterkit.preflight.checks.each_gpu import gpu_check
from clusterkit.preflight.checks.results import Advice, Result, Results, advice, ok, skip, unknown
from clusterkit.preflight.checks.types import Evidence, Tier, check
from clusterkit.preflight.probes.gpu import dcgm_diag, nccl_tests
from clusterkit.preflight.probes.gpu.dcgm_diag import Diag
from clusterkit.preflight.probes.gpu.nccl_tests import ONE_NODE, NcclTest
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu

# nvml.h, nvmlClocksEventReason*
_FINE = 0x1 | 0x2 | 0x4 | 0x10 | 0x100
"""Idle, application clocks, power cap under load, sync boost, display clocks."""
_HW_SLOWDOWN = 0x8
_SW_THERMAL = 0x20
_HW_THERMAL = 0x40
_POWER_BRAKE = 0x80
_KNOWN = _FINE | _HW_SLOWDOWN | _SW_THERMAL | _HW_THERMAL | _POWER_BRAKE

# The first that has all its bits. HW Slowdown is set over both of its causes: a power brake
# without it cuts no clock.
SLOWDOWNS = (
    (_HW_THERMAL, Verdict.FAIL, "hardware thermal slowdown", "cooling"),
    (_HW_SLOWDOWN | _POWER_BRAKE, Verdict.FAIL, "power brake slowdown", "power"),
    (_HW_SLOWDOWN, Verdict.FAIL, "hardware slowdown", "power"),
    (_SW_THERMAL, Verdict.WARN, "software thermal slowdown", "cooling"),
    (_POWER_BRAKE, Verdict.WARN, "power brake, clocks not cut", "power"),
)
"""Bits, what they mean, and the case of GPU013 that says what to do."""


@gpu_check("GPU013", "gpu-throttle", "clocks are not held down")
def _throttle(gpu: Gpu) -> Result | None:
    mask = gpu.clock_reasons
    if mask is None:
        return skip("this driver names no clock reasons")
    for bits, verdict, summary, cause in SLOWDOWNS:
        if mask & bits == bits:
            reasons = f"GPU {gpu.index}: clock reasons {mask:#x}"
            return advice("GPU013", cause, gpu=gpu.index).result(verdict, summary, reasons)
    return unknown(f"clock reasons {mask:#x} are not known") if mask & ~_KNOWN else None


_WARM_C = 85.0
"""Above this, no data-centre GPU has much left: they slow down between 87 and 100 C."""
_NEAR_C = 10.0
"""Degrees from the GPU's own slowdown, where the driver says how far that is."""


@gpu_check("GPU014", "gpu-temperature", "temperatures are fine")
def _temperature(gpu: Gpu) -> Result | None:
    return heat(advice("GPU014", gpu=gpu.index), gpu.temperature_c, gpu.margin_c)


def heat(hot: Advice, celsius: float | None, margin_c: float | None) -> Result | None:
    """Return what is wrong with the temperature of a GPU, so far from its slowdown."""
    if celsius is None:
        return skip("no temperature is told")
    if margin_c is not None and margin_c <= 0:
        return hot.fail(f"{celsius:.0f} C, at its slowdown limit")
    if margin_c is not None and margin_c < _NEAR_C:
        return hot.warn(f"{celsius:.0f} C, {margin_c:.0f} C from its slowdown")
    return hot.warn(f"{celsius:.0f} C") if celsius > _WARM_C else None


_SLACK_W = 1.0


@gpu_check("GPU015", "gpu-power-limit", "power limits are not lowered")
def _power_limit(gpu: Gpu) -> Result | None:
    limit, default = gpu.power_limit_w, gpu.default_power_limit_w
    if limit is None or default is None:
        return skip("no power limit is told")
    if limit >= default - _SLACK_W:
        return None
    summary = f"power limit {limit:.0f} W, its default is {default:.0f} W"
    return advice("GPU015", gpu=gpu.index).warn(summary)


_NOT_READY = "system not yet initialized"
"""CUDA_ERROR_SYSTEM_NOT_READY: NVSwitches are there, and nobody has set them up."""


@check("GPU022", "gpu-dcgm", dcgm_diag.PROBE)
def _dcgm(evidence: Evidence) -> Results:
    if evidence.job.requests(dcgm_diag.ASK):
        yield from each(evidence, dcgm_diag.PROBE, _diagnosis)


def _diagnosis(diag: Diag) -> Iterator[Result]:
    faults = [test for test in diag.tests if test.result in {"Fail", "Warn"}]
    for test in faults:
        warns = test.result == "Warn" or test.configuration
        cause = "setting" if test.configuration else ""
        if any(_NOT_READY in warning for warning in test.warnings):
            cause = "fabric"
        yield advice("GPU022", cause).result(
            Verdict.WARN if warns else Verdict.FAIL,
            " ".join(filter(None, ["dcgmi diag:", test.name, test.entity, test.result])),
            "\n".join(test.warnings),
        )
    ran = sum(test.result == "Pass" for test in diag.tests)
    if not faults and not ran:
        yield unknown("dcgmi diag ran no test")
    elif not faults:
        yield ok("dcgmi diag passes", f"{ran} of {len(diag.tests)} tests ran")


_WARN, _FAIL = 0.85, 0.7
"""Shares of the median of the job's nodes, then of what was published for the same GPUs."""


@check("GPU027", "gpu-all-reduce", nccl_tests.PROBE, tier=Tier.ROUND_TRIP)
def _all_reduce(evidence: Evidence) -> Results:
    if not evidence.job.requests(nccl_tests.ASK):
        return
    ran, results = known(evidence, nccl_tests.PROBE)
    yield from results
    usual = median(test.peak.bus_gb_s for test in ran.values()) if ran else 0.0
    for name, test in ran.items():
        yield name, _measured(test, usual)


def _measured(test: NcclTest, usual: float) -> Result:
    if test.correct is False:
        wrong = "an all-reduce gives wrong values"
        return advice("GPU027").fail(wrong, "data is corrupted on its way")
    if test.error is not None:
        return advice("GPU027").fail("an all-reduce fails", test.error)
    best = test.peak.bus_gb_s
    for expected, what in _expected(test, usual):
        if best < _WARN * expected:
            bad = best < _FAIL * expected
            summary = f"its GPUs reduce at less than {_FAIL if bad else _WARN:.0%} of {what}"
            speeds = f"{best:.0f} GB/s, {expected:.0f} {what}"
            return advice("GPU027").result(Verdict.FAIL if bad else Verdict.WARN, summary, speeds)
    if test.correct is None:
        return unknown("nobody looked at the sums, or it was cut off")
    return ok("its GPUs reduce as fast as they should", f"{best:.0f} GB/s")


def _expected(test: NcclTest, usual: float) -> Iterator[tuple[float, str]]:
    yield usual, "the job's median"
    for one in ONE_NODE:
        if test.ranks == one.per_node and one.gpu.search(test.device or ""):
            yield one.gbs, f"what is published ({one.source})"
