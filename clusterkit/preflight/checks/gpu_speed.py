"""GPU: what slows NVIDIA GPUs down: clocks, heat, power, and what measurements say."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import each, known
from clusterkit.preflight.checks.each_gpu import each_gpu
from clusterkit.preflight.checks.results import Advice, Result, Results, ok, skip, unknown, warn
from clusterkit.preflight.checks.types import Evidence, Tier, about, check
from clusterkit.preflight.expected_busbw import ONE_NODE
from clusterkit.preflight.probes.gpu import dcgm_diag, nccl_tests, nvidia_gpus
from clusterkit.preflight.probes.gpu.dcgm_diag import Diag, DiagTest
from clusterkit.preflight.probes.gpu.nccl_tests import NcclTest
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
SLOWDOWNS = (
    (_HW_THERMAL, Verdict.FAIL, "hardware thermal slowdown", _COOLING),
    (_HW_SLOWDOWN | _POWER_BRAKE, Verdict.FAIL, "power brake slowdown", _POWER),
    (_HW_SLOWDOWN, Verdict.FAIL, "hardware slowdown", _POWER),
    (_SW_THERMAL, Verdict.WARN, "software thermal slowdown", _COOLING),
    (_POWER_BRAKE, Verdict.WARN, "power brake, clocks not cut", _POWER),
)
"""Bits, what they mean, and what to do."""


@check("GPU013", "gpu-throttle", nvidia_gpus.PROBE)
@about(
    what="No GPU runs at cut clocks for heat or for want of power.",
    why="In data-parallel training every step waits for the slowest GPU of the job.",
    how="Bits of `clocks_event_reasons.active` (before driver 535"
    " `clocks_throttle_reasons.active`): hardware slowdowns fail (0x8, 0x40; 0x80 with 0x8), the"
    " software's thermal one (0x20) warns; idle, application clocks and power cap are fine.",
    fix="Mend cooling or power of the node; leave it out of the job until then.",
    source="nvml.h, nvmlClocksEventReasons. Azure's check of the same bits only logs them.",
)
@each_gpu("clocks are not held down")
def _throttle(gpu: Gpu) -> Result | None:
    mask = gpu.clock_reasons
    if mask is None:
        return skip("this driver names no clock reasons")
    for bits, verdict, summary, hint in SLOWDOWNS:
        if mask & bits == bits:
            advice = Advice(hint=hint, command=f"nvidia-smi -q -d PERFORMANCE -i {gpu.index}")
            return advice.result(verdict, summary, f"GPU {gpu.index}: clock reasons {mask:#x}")
    return unknown(f"clock reasons {mask:#x} are not known") if mask & ~_KNOWN else None


_WARM_C = 85.0
"""Above this, no data-centre GPU has much left: they slow down between 87 and 98 C."""
_NEAR_C = 10.0
"""Degrees from the GPU's own slowdown, where the driver says how far that is."""


@check("GPU014", "gpu-temperature", nvidia_gpus.PROBE)
@about(
    what="No GPU is above 85 C or within 10 C of the temperature at which it slows down.",
    why="A GPU that is hot before the job starts will be slowed down in it.",
    how="`temperature.gpu`, and the distance from the slowdown by `temperature.gpu.tlimit` or"
    " `nvidia-smi -q -d TEMPERATURE`. At the slowdown limit it fails.",
    fix="Mend the cooling; leave the node out until then.",
    source="The GPU's own limits, as nvidia-smi states them; 85 C where it states none.",
)
@each_gpu("temperatures are fine")
def _temperature(gpu: Gpu) -> Result | None:
    if gpu.temperature_c is None:
        return skip("no temperature sensor")
    advice = Advice(
        hint="look at fans, inlets and the neighbours of the node",
        command=f"nvidia-smi -q -d TEMPERATURE -i {gpu.index}",
    )
    at = f"{gpu.temperature_c:.0f} C"
    if gpu.margin_c is not None and gpu.margin_c <= 0:
        return advice.fail(f"{at}, at its slowdown limit")
    if gpu.margin_c is not None and gpu.margin_c < _NEAR_C:
        return advice.warn(f"{at}, {gpu.margin_c:.0f} C from its slowdown")
    return advice.warn(at) if gpu.temperature_c > _WARM_C else None


_SLACK_W = 1.0


@check("GPU015", "gpu-power-limit", nvidia_gpus.PROBE)
@about(
    what="No GPU has a power limit below its default.",
    why="It computes more slowly than its fellows, and every step waits for it.",
    how="`enforced.power.limit` against `power.default_limit` of `nvidia-smi --query-gpu`.",
    fix="`nvidia-smi -i N -pl WATT` as root, unless the site lowers it on purpose.",
    source="The GPU's own default.",
)
@each_gpu("power limits are not lowered")
def _power_limit(gpu: Gpu) -> Result | None:
    limit, default = gpu.power_limit_w, gpu.default_power_limit_w
    if limit is None or default is None:
        return skip("no power limit is told")
    if limit >= default - _SLACK_W:
        return None
    return warn(
        f"power limit {limit:.0f} W, its default is {default:.0f} W",
        hint="unless the site means it, set it back; all GPUs of a job should have the same",
        command=f"nvidia-smi -q -d POWER -i {gpu.index}",
    )


_NOT_READY = "system not yet initialized"
"""CUDA_ERROR_SYSTEM_NOT_READY: NVSwitches are there, and nobody has set them up."""


@check("GPU022", "gpu-dcgm", dcgm_diag.PROBE)
@about(
    what="NVIDIA's own diagnosis, level 1, passes.",
    why="It looks at libraries, permissions, settings and memory as NVIDIA's support would.",
    how="`dcgmi diag -r 1 -j`, only where the cluster or the job sets CLUSTERKIT_DCGM_DIAG=1: it"
    " takes up to a minute and wants idle GPUs. A skipped test is not a passed one; what DCGM"
    " files under configuration (severity 5) only warns.",
    fix="Read the evidence; run `dcgmi diag -r 3` on that node when it is free.",
    source="DCGM User Guide, diagnostics; dcgm_errors.h for the severities.",
)
def _dcgm(evidence: Evidence) -> Results:
    if dcgm_diag.asked(evidence.job):
        yield from each(evidence, dcgm_diag.PROBE, _diagnosis)


def _diagnosis(diag: Diag) -> Iterator[Result]:
    faults = [test for test in diag.tests if test.result in {"Fail", "Warn"}]
    for test in faults:
        warns = test.result == "Warn" or test.configuration
        yield Advice(hint=_hint(test), command="dcgmi diag -r 1").result(
            Verdict.WARN if warns else Verdict.FAIL,
            " ".join(filter(None, ["dcgmi diag:", test.name, test.entity, test.result])),
            "\n".join(test.warnings),
        )
    ran = sum(test.result == "Pass" for test in diag.tests)
    if not faults and not ran:
        yield unknown("dcgmi diag ran no test")
    elif not faults:
        yield ok("dcgmi diag passes", f"{ran} of {len(diag.tests)} tests ran")


def _hint(test: DiagTest) -> str:
    if any(_NOT_READY in warning for warning in test.warnings):
        return "CUDA waits for the fabric manager: systemctl status nvidia-fabricmanager"
    return "a setting of the node, not its hardware" if test.configuration else ""


_WARN, _FAIL = 0.85, 0.7
"""Shares of the median of the job's nodes, then of what was published for the same GPUs."""


@check("GPU027", "gpu-all-reduce", nccl_tests.PROBE, tier=Tier.ROUND_TRIP)
@about(
    what="An all-reduce between all GPUs of a node gives the right sums, as fast as on the"
    f" other nodes: below {_WARN:.0%} of the job's median, or of what was published for the"
    f" same GPUs, is a warning, below {_FAIL:.0%} a failure.",
    why="All else can look well: only traffic shows a link that is up and slow, or corrupts.",
    how="`all_reduce_perf -b 1G -e 4G` of nccl-tests from PATH, only where the cluster or the"
    f" job sets {nccl_tests.ASK}=1: it keeps all GPUs busy for up to a minute. The best of the"
    " large messages counts; the average that the program prints mixes in small ones.",
    fix="Look at GPU017 (NVLink), GPU018 (fabric) and GPU013 (clocks) of the node.",
    source="facebookresearch/gcm, AWS and Azure for figures; shares are ours.",
)
def _all_reduce(evidence: Evidence) -> Results:
    if not nccl_tests.asked(evidence.job):
        return
    ran, results = known(evidence, nccl_tests.PROBE)
    yield from results
    usual = median(test.peak.bus_gb_s for test in ran.values()) if ran else 0.0
    for name, test in ran.items():
        yield name, _measured(test, usual)


def _measured(test: NcclTest, usual: float) -> Result:
    advice = Advice(
        hint="look at NVLinks, fabric manager and clocks of the node; compare with a good one",
        command="nvidia-smi nvlink -s; nvidia-smi topo -m",
    )
    if test.correct is False:
        return advice.fail("an all-reduce gives wrong values", "data is corrupted on its way")
    if test.error is not None:
        return advice.fail("an all-reduce fails", test.error)
    best = test.peak.bus_gb_s
    for expected, what in _expected(test, usual):
        if best < _WARN * expected:
            bad = best < _FAIL * expected
            summary = f"its GPUs reduce at less than {_FAIL if bad else _WARN:.0%} of {what}"
            speeds = f"{best:.0f} GB/s, {expected:.0f} {what}"
            return advice.result(Verdict.FAIL if bad else Verdict.WARN, summary, speeds)
    if test.correct is None:
        return unknown("nobody looked at the sums, or it was cut off")
    return ok("its GPUs reduce as fast as they should", f"{best:.0f} GB/s")


def _expected(test: NcclTest, usual: float) -> Iterator[tuple[float, str]]:
    yield usual, "the job's median"
    for one in ONE_NODE:
        if test.ranks == one.per_node and one.gpu.search(test.device or ""):
            yield one.gbs, f"what is published ({one.source})"
