"""GPU: errors of NVIDIA GPUs: memory, the kernel log, and what the driver asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote
from clusterkit.preflight.checks.base import each_machine, each_node
from clusterkit.preflight.checks.each_gpu import each_gpu
from clusterkit.preflight.checks.results import (
    Advice,
    Result,
    fail,
    ok,
    skip,
    unknown,
    warn,
)
from clusterkit.preflight.checks.types import NodeFacts, check
from clusterkit.preflight.probes.gpu import kernel_log, nvidia_gpus
from clusterkit.preflight.probes.gpu.kernel_log import KernelLog, Xid
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu
from clusterkit.preflight.probes.gpu.xid_catalog import (
    RECOVERY_ACTION,
    XidAction,
    xid_action,
    xid_name,
)
from clusterkit.transport.probe import Missing


@check("GPU007", "gpu-recovery-action", nvidia_gpus.PROBE)
@each_gpu("the driver asks for no recovery")
def _recovery_action(gpu: Gpu) -> Result | None:
    if gpu.recovery_action is None:
        return skip("this driver names no recovery action")
    if gpu.recovery_action == "None":
        return None
    hint = "leave the node out of the job until that is done"
    command = f"nvidia-smi -q -i {gpu.index} | grep -i -A2 -e recovery -e reset"
    return fail(f"the driver asks for: {gpu.recovery_action}", hint=hint, command=command)


@check("GPU008", "gpu-ecc", nvidia_gpus.PROBE)
@each_gpu("no uncorrected memory errors")
def _ecc(gpu: Gpu) -> Result | None:
    command = f"nvidia-smi -q -d ECC -i {gpu.index}"
    if gpu.uncorrected:
        summary = f"uncorrected ECC errors since the driver was loaded: {gpu.uncorrected}"
        hint = "reset the GPU before the job; replace it if they come back"
        return fail(summary, hint=hint, command=command)
    if gpu.uncorrected_ever:
        summary = f"uncorrected ECC errors in its life, none since boot: {gpu.uncorrected_ever}"
        hint = "watch it; one that gathers more should be replaced"
        return warn(summary, hint=hint, command=command)
    if gpu.uncorrected is None:
        return skip("ECC is off" if gpu.ecc is False else "no ECC memory")
    return None


@check("GPU009", "gpu-row-remap", nvidia_gpus.PROBE)
@each_gpu("no row waits to be remapped")
def _row_remap(gpu: Gpu) -> Result | None:
    command = f"nvidia-smi -q -d ROW_REMAPPER -i {gpu.index}"
    if gpu.remap_failed:
        hint = "no spare rows are left: have the GPU replaced"
        return fail("a memory row could not be remapped", hint=hint, command=command)
    if gpu.remap_pending:
        hint = "reset the GPU or reboot the node; the remap takes effect then"
        return fail("a row remap is pending", hint=hint, command=command)
    if gpu.remapped_uncorrectable:
        summary = f"rows remapped after uncorrectable errors: {gpu.remapped_uncorrectable}"
        return warn(summary, hint="it works; replace it if the number grows", command=command)
    if gpu.remap_pending is None or gpu.remap_failed is None:
        # A GPU in MIG mode has a row remapper and does not tell: neither well nor ill.
        silent = unknown("row remapping is not told in MIG mode")
        return silent if gpu.mig else skip("no row remapping")
    return None


_MANY_PAGES = 60
"""A board is to be replaced at 64 (NVIDIA Dynamic Page Retirement); AWS warns above 60."""


@check("GPU010", "gpu-retired-pages", nvidia_gpus.PROBE)
@each_gpu("no retired pages to act on")
def _retired_pages(gpu: Gpu) -> Result | None:
    command = f"nvidia-smi -q -d PAGE_RETIREMENT -i {gpu.index}"
    if gpu.retired_double_bit:
        summary = f"pages retired after double-bit errors: {gpu.retired_double_bit}"
        hint = "leave the node out and have the GPU tested or replaced"
        return fail(summary, hint=hint, command=command)
    if gpu.retirement_pending:
        hint = "reset the GPU or reboot the node"
        return fail("a page waits to be retired", hint=hint, command=command)
    if gpu.retired_single_bit is not None and gpu.retired_single_bit > _MANY_PAGES:
        summary = f"pages retired after single-bit errors: {gpu.retired_single_bit}"
        hint = "the GPU nears its limit of 64: plan to replace it"
        return warn(summary, hint=hint, command=command)
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
    noted = ", ".join(f"{x.bus} {xid_name(x)} x{x.count}" for x in log.xids)
    return [*results, *_notes(log)] or [ok("no Xid that concerns the node", noted)]


def _of_xid(xid: Xid, others: Collection[Xid], known: Mapping[str, Gpu]) -> Result | None:
    action = xid_action(xid)
    of_gpu = {other.code: other for other in others if other.bus == xid.bus}
    if action is XidAction.NOTHING or xid.cause in of_gpu:
        return None  # the Xid that caused it decides
    gpu = known.get(_bus(xid.bus))
    name = xid.bus if gpu is None else f"GPU {gpu.index}"
    # The log keeps an error over a reset of the GPU; the driver's own verdict does not.
    later = of_gpu.get(RECOVERY_ACTION)
    settled = action is XidAction.RESET and (
        (gpu is not None and gpu.recovery_action == "None")
        or (later is not None and later.last > xid.last and xid_action(later) is XidAction.NOTHING)
    )
    advice = Advice(
        hint=f"NVIDIA's advice: {action.value}",
        command=f"dmesg -T | grep {quote(f'NVRM.*{xid.bus}')}",
    )
    return advice.result(
        Verdict.WARN if settled or action in _MILD else Verdict.FAIL,
        f"{name}: {xid_name(xid)}" + (", the driver asks for nothing now" if settled else ""),
        f"{xid.count}x, last: {xid.detail}",
    )


def _notes(log: KernelLog) -> Iterator[Result]:
    """Tell what jobs before this one met on the node; no GPU is known to be at fault."""
    if log.peermem:
        yield warn(
            "nvidia-peermem met an invalid context",
            f"{log.peermem}x since boot",
            hint="a job that is killed leaves this; where jobs hang here, restart nvidia-peermem",
            command="dmesg -T | grep peermem",
        )
    if log.crashes:
        yield warn(
            f"{', '.join(sorted(log.crashes))} crashed in libnccl",
            ", ".join(f"{name} {n}x since boot" for name, n in log.crashes.items()),
            hint="compare its NCCL with that of other nodes; see whether the fabric manager runs",
            command="dmesg -T | grep 'in libnccl'",
        )


def _bus(address: str) -> str:
    """Return domain, bus and device alike for the kernel's and for nvidia-smi's spelling."""
    return address.lower().partition(".")[0][-10:].rjust(10, "0")


@check("GPU012", "gpu-nvswitch", kernel_log.PROBE)
@each_node(kernel_log.PROBE)
def _nvswitch(log: KernelLog) -> Result:
    if not log.sxids:
        return ok("no error of an NVSwitch")
    fatal = [sxid for sxid in log.sxids if sxid.fatal]
    codes = ", ".join(str(code) for code in sorted({sxid.code for sxid in fatal or log.sxids}))
    lines = "\n".join(f"{s.bus} SXid {s.code} x{s.count}: {s.detail}" for s in log.sxids)
    command = "dmesg -T | grep SXid"
    if fatal:
        hint = "restart the fabric manager and reset all GPUs, or reboot the node"
        return fail(f"NVSwitch: fatal SXid {codes}", lines, hint=hint, command=command)
    hint = "watch it; with Xid 74 on a GPU, the switch is the cause"
    return warn(f"NVSwitch: SXid {codes}", lines, hint=hint, command=command)
