"""GPU: errors of NVIDIA GPUs: memory, the kernel log, and what the driver asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import each_machine, node_check
from clusterkit.preflight.checks.each_gpu import gpu_check
from clusterkit.preflight.checks.results import Result, advice, ok, skip, unknown
from clusterkit.preflight.checks.types import NodeFacts, check
from clusterkit.preflight.probes.gpu import kernel_log, nvidia_gpus
from clusterkit.preflight.probes.gpu.kernel_log import KernelLog, Xid, XidAction
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu
from clusterkit.transport.probe import Missing


@gpu_check("GPU007", "gpu-recovery-action", "the driver asks for no recovery")
def _recovery_action(gpu: Gpu) -> Result | None:
    if gpu.recovery_action is None:
        return skip("this driver names no recovery action")
    if gpu.recovery_action == "None":
        return None
    return advice("GPU007", gpu=gpu.index).fail(f"the driver asks for: {gpu.recovery_action}")


@gpu_check("GPU008", "gpu-ecc", "no uncorrected memory errors")
def _ecc(gpu: Gpu) -> Result | None:
    if gpu.uncorrected:
        summary = f"uncorrected ECC errors since the driver was loaded: {gpu.uncorrected}"
        return advice("GPU008", "now", gpu=gpu.index).fail(summary)
    if gpu.uncorrected_ever:
        summary = f"uncorrected ECC errors in its life, none since boot: {gpu.uncorrected_ever}"
        return advice("GPU008", "ever", gpu=gpu.index).warn(summary)
    if gpu.uncorrected is None:
        return skip("ECC is off" if gpu.ecc is False else "no ECC memory")
    return None


@gpu_check("GPU009", "gpu-row-remap", "no row waits to be remapped")
def _row_remap(gpu: Gpu) -> Result | None:
    if gpu.remap_failed:
        failed = advice("GPU009", "failed", gpu=gpu.index)
        return failed.fail("a memory row could not be remapped")
    if gpu.remap_pending:
        return advice("GPU009", "pending", gpu=gpu.index).fail("a row remap is pending")
    if gpu.remapped_uncorrectable:
        summary = f"rows remapped after uncorrectable errors: {gpu.remapped_uncorrectable}"
        return advice("GPU009", "remapped", gpu=gpu.index).warn(summary)
    if gpu.remap_pending is None or gpu.remap_failed is None:
        # A GPU in MIG mode has a row remapper and does not tell: neither well nor ill.
        silent = unknown("row remapping is not told in MIG mode")
        return silent if gpu.mig else skip("no row remapping")
    return None


_MANY_PAGES = 60
"""A board is to be replaced at 64 (NVIDIA Dynamic Page Retirement); AWS warns above 60."""


@gpu_check("GPU010", "gpu-retired-pages", "no retired pages to act on")
def _retired_pages(gpu: Gpu) -> Result | None:
    if gpu.retired_double_bit:
        summary = f"pages retired after double-bit errors: {gpu.retired_double_bit}"
        return advice("GPU010", "double", gpu=gpu.index).fail(summary)
    if gpu.retirement_pending:
        return advice("GPU010", "pending", gpu=gpu.index).fail("a page waits to be retired")
    if gpu.retired_single_bit is not None and gpu.retired_single_bit > _MANY_PAGES:
        summary = f"pages retired after single-bit errors: {gpu.retired_single_bit}"
        return advice("GPU010", "single", gpu=gpu.index).warn(summary)
    if gpu.retired_double_bit is None:
        return skip("no page retirement (before Ampere only)")
    return None


_MILD = {XidAction.WATCH, XidAction.REPORT, XidAction.UPDATE, XidAction.ACTIVATE}


@check("GPU011", "gpu-xid", kernel_log.PROBE, nvidia_gpus.PROBE)
@each_machine
def _xid(node: NodeFacts) -> list[Result]:
    log, state = node.need(kernel_log.PROBE), node.of(nvidia_gpus.PROBE)
    known = {} if isinstance(state, Missing) else {_bus(g.bus_id): g for g in state.gpus}
    results = [r for xid in log.xids if (r := _of_xid(xid, log.xids, known)) is not None]
    noted = ", ".join(f"{x.bus} {kernel_log.xid_name(x)} x{x.count}" for x in log.xids)
    return [*results, *_notes(log)] or [ok("no Xid that concerns the node", noted)]


def _of_xid(xid: Xid, others: Collection[Xid], known: Mapping[str, Gpu]) -> Result | None:
    action = kernel_log.xid_action(xid)
    of_gpu = {other.code: other for other in others if other.bus == xid.bus}
    if action is XidAction.NOTHING or xid.cause in of_gpu:
        return None  # the Xid that caused it decides
    gpu = known.get(_bus(xid.bus))
    name = xid.bus if gpu is None else f"GPU {gpu.index}"
    # The log keeps an error over a reset of the GPU; the driver's own verdict does not.
    later = of_gpu.get(kernel_log.RECOVERY_ACTION)
    quiet = later and later.last > xid.last and kernel_log.xid_action(later) is XidAction.NOTHING
    recovered = gpu is not None and gpu.recovery_action == "None"
    settled = action is XidAction.RESET and (recovered or quiet)
    return advice("GPU011", "xid", action=action.value, lines=f"NVRM.*{xid.bus}").result(
        Verdict.WARN if settled or action in _MILD else Verdict.FAIL,
        f"{name}: {kernel_log.xid_name(xid)}"
        + (", the driver asks for nothing now" if settled else ""),
        f"{xid.count}x, last: {xid.detail}",
    )


def _notes(log: KernelLog) -> Iterator[Result]:
    """Yield what jobs before this one met on the node; no GPU is known to be at fault."""
    if log.peermem:
        summary = "nvidia-peermem met an invalid context"
        yield advice("GPU011", "peermem").warn(summary, f"{log.peermem}x since boot")
    if log.crashes:
        counts = ", ".join(f"{name} {n}x since boot" for name, n in log.crashes.items())
        summary = f"{', '.join(sorted(log.crashes))} crashed in libnccl"
        yield advice("GPU011", "crash").warn(summary, counts)


def _bus(address: str) -> str:
    """Return domain, bus and device alike for the kernel's and for nvidia-smi's spelling."""
    return address.lower().partition(".")[0][-10:].rjust(10, "0")


@node_check("GPU012", "gpu-nvswitch", kernel_log.PROBE)
def _nvswitch(log: KernelLog) -> Result:
    if not log.sxids:
        return ok("no error of an NVSwitch")
    fatal = [sxid for sxid in log.sxids if sxid.fatal]
    codes = ", ".join(str(code) for code in sorted({sxid.code for sxid in fatal or log.sxids}))
    lines = "\n".join(f"{s.bus} SXid {s.code} x{s.count}: {s.detail}" for s in log.sxids)
    if fatal:
        return advice("GPU012", "fatal").fail(f"NVSwitch: fatal SXid {codes}", lines)
    return advice("GPU012", "mild").warn(f"NVSwitch: SXid {codes}", lines)
