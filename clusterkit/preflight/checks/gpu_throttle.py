"""GPU013: GPUs that are slowed down."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling
from clusterkit.preflight.checks.by_gpu import by_gpu
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu

# nvml.h, nvmlClocksEventReason*
_FINE = 0x1 | 0x2 | 0x4 | 0x10 | 0x100
"""Idle, application clocks, power cap under load, sync boost, display clocks."""
_HW_SLOWDOWN = 0x8
_SW_THERMAL = 0x20
_HW_THERMAL = 0x40
_POWER_BRAKE = 0x80
_KNOWN = _FINE | _HW_SLOWDOWN | _SW_THERMAL | _HW_THERMAL | _POWER_BRAKE
_COOLING = "look at fans and inlets; leave the node out until it is cool"
_POWER = "check power supplies and cables; leave the node out until then"

# The first that has all its bits. HW Slowdown is set over both of its causes: a power brake
# without it cuts no clock.
TROUBLES = (
    (_HW_THERMAL, Verdict.FAIL, "hardware thermal slowdown", _COOLING),
    (_HW_SLOWDOWN | _POWER_BRAKE, Verdict.FAIL, "power brake slowdown", _POWER),
    (_HW_SLOWDOWN, Verdict.FAIL, "hardware slowdown", _POWER),
    (_SW_THERMAL, Verdict.WARN, "software thermal slowdown", _COOLING),
    (_POWER_BRAKE, Verdict.WARN, "power brake, clocks not cut", _POWER),
)
"""Bits, what they mean, and what to do."""


def _judge(evidence: Evidence) -> Judgement:
    return by_gpu(evidence, _rule, "clocks are not held down")


def _rule(gpu: Gpu) -> Ruling | None:
    mask = gpu.clock_reasons
    if mask is None:
        return Ruling(verdict=Verdict.SKIP, summary="this driver names no clock reasons")
    for bits, verdict, summary, hint in TROUBLES:
        if mask & bits == bits:
            return _held(gpu, verdict, summary, hint)
    if mask & ~_KNOWN:
        return Ruling(verdict=Verdict.UNKNOWN, summary=f"clock reasons {mask:#x} are not known")
    return None


def _held(gpu: Gpu, verdict: Verdict, summary: str, hint: str) -> Ruling:
    return Ruling(
        verdict=verdict,
        summary=summary,
        evidence=f"GPU {gpu.index}: clock reasons {gpu.clock_reasons:#x}",
        hint=hint,
        command=f"nvidia-smi -q -d PERFORMANCE -i {gpu.index}",
    )


CHECK = Check(
    id="GPU013",
    name="gpu-throttle",
    about=About(
        what="No GPU runs at cut clocks for heat or for want of power.",
        why="In data-parallel training every step waits for the slowest GPU of the job.",
        how="Bits of `clocks_event_reasons.active` (before driver 535 "
        "`clocks_throttle_reasons.active`): hardware slowdowns fail (0x8, 0x40; 0x80 with 0x8), "
        "the software's thermal one (0x20) warns; idle, application clocks and power cap are fine.",
        fix="Mend cooling or power of the node; leave it out of the job until then.",
        source="nvml.h, nvmlClocksEventReasons. Azure's check of the same bits only logs them.",
    ),
    probes=(nvidia_gpus.PROBE,),
    judge=_judge,
)
