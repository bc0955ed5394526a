"""GPU011: errors of GPUs in the kernel log since boot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    missing,
    passed,
)
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

_MILD = {XidAction.WATCH, XidAction.REPORT, XidAction.UPDATE, XidAction.ACTIVATE}


def _judge(evidence: Evidence) -> Judgement:
    for node in evidence.nodes:
        log, state = node.of(kernel_log.PROBE), node.of(nvidia_gpus.PROBE)
        if isinstance(log, Missing):
            yield node.name, missing(log)
            continue
        known = {} if isinstance(state, Missing) else {_bus(g.bus_id): g for g in state.gpus}
        rulings = [r for xid in log.xids if (r := _rule(xid, log.xids, known)) is not None]
        rulings += _notes(log)
        for ruling in rulings:
            yield node.name, ruling
        if not rulings:
            noted = ", ".join(f"{x.bus} {xid_name(x)} x{x.count}" for x in log.xids)
            yield node.name, passed("no Xid that concerns the node", noted)


def _rule(xid: Xid, others: Collection[Xid], known: Mapping[str, Gpu]) -> Ruling | None:
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
    mild = settled or action in _MILD
    return Ruling(
        verdict=Verdict.WARN if mild else Verdict.FAIL,
        summary=f"{name}: {xid_name(xid)}"
        + (", the driver asks for nothing now" if settled else ""),
        evidence=f"{xid.count}x, last: {xid.detail}",
        hint=f"NVIDIA's advice: {action.value}",
        command=f"dmesg -T | grep {quote(f'NVRM.*{xid.bus}')}",
    )


def _notes(log: KernelLog) -> Iterator[Ruling]:
    """Tell what jobs before this one met on the node; no GPU is known to be at fault."""
    if log.peermem:
        yield Ruling(
            verdict=Verdict.WARN,
            summary="nvidia-peermem met an invalid context",
            evidence=f"{log.peermem}x since boot",
            hint="a job that is killed leaves this; where jobs hang here, restart nvidia-peermem",
            command="dmesg -T | grep peermem",
        )
    if log.crashes:
        yield Ruling(
            verdict=Verdict.WARN,
            summary=f"{', '.join(sorted(log.crashes))} crashed in libnccl",
            evidence=", ".join(f"{name} {n}x since boot" for name, n in log.crashes.items()),
            hint="compare its NCCL with that of other nodes; see whether the fabric manager runs",
            command="dmesg -T | grep 'in libnccl'",
        )


def _bus(address: str) -> str:
    """Return domain, bus and device alike for the kernel's and for nvidia-smi's spelling."""
    return address.lower().partition(".")[0][-10:].rjust(10, "0")


CHECK = Check(
    id="GPU011",
    name="gpu-xid",
    about=About(
        what="The driver has logged no error (Xid) since boot that asks for a reset or a repair.",
        why="Most Xids of hardware come back under load, within hours, and end the job.",
        how="`dmesg`, else `journalctl -k -b`: lines `NVRM: Xid (PCI:...): N`, each code once a "
        "GPU, and GPUs that fell off the bus or did not initialise without an Xid. What the "
        "catalogue ignores or leaves to the application passes. Xid 45 is judged by the Xid that "
        "caused it, NVLink's 144 to 150 by whether they say Fatal. An Xid that asks for a reset "
        "only warns where the driver no longer names a recovery action (Xid 154, nvidia-smi). "
        "Programs that crashed in libnccl and complaints of nvidia-peermem are told. A log that "
        "may not be read is unknown.",
        fix="As the finding says: reset the GPU, restart the node, or have it repaired.",
        source="NVIDIA Xid catalogue, releases 555 to 610, column of immediate actions.",
    ),
    probes=(kernel_log.PROBE, nvidia_gpus.PROBE),
    judge=_judge,
)
