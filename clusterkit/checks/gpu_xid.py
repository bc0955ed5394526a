"""GPU011: errors of GPUs in the kernel log since boot."""

from __future__ import annotations

from collections.abc import Mapping

from clusterkit.checks.base import About, Check, Evidence, Judgement, Ruling, missing, passed
from clusterkit.findings import Verdict
from clusterkit.probes import kernel_log, nvidia_gpus
from clusterkit.probes.base import Missing
from clusterkit.probes.kernel_log import Xid
from clusterkit.probes.nvidia_gpus import Gpu
from clusterkit.probes.xid_catalog import XidAction, xid_action, xid_name
from clusterkit.shell import quote


def _judge(evidence: Evidence) -> Judgement:
    for node in evidence.nodes:
        log, state = node.of(kernel_log.PROBE), node.of(nvidia_gpus.PROBE)
        if isinstance(log, Missing):
            yield node.name, missing(log)
            continue
        known = {} if isinstance(state, Missing) else {_bus(g.bus_id): g for g in state.gpus}
        rulings = [r for xid in log.xids if (r := _rule(xid, known)) is not None]
        for ruling in rulings:
            yield node.name, ruling
        if not rulings:
            noted = ", ".join(f"{x.bus} Xid {x.code} x{x.count}" for x in log.xids)
            yield node.name, passed("no Xid that concerns the node", noted)


def _rule(xid: Xid, known: Mapping[str, Gpu]) -> Ruling | None:
    action = xid_action(xid)
    if action is XidAction.NOTHING:
        return None
    gpu = known.get(_bus(xid.bus))
    name = xid.bus if gpu is None else f"GPU {gpu.index}"
    # The log keeps an error over a reset of the GPU; the driver's own verdict does not.
    settled = gpu is not None and gpu.recovery_action == "None" and action is XidAction.RESET
    mild = settled or action in {XidAction.WATCH, XidAction.ACTIVATE}
    return Ruling(
        verdict=Verdict.WARN if mild else Verdict.FAIL,
        summary=f"{name}: {xid_name(xid)}"
        + (", the driver asks for nothing now" if settled else ""),
        evidence=f"{xid.count}x, last: {xid.detail}",
        hint=f"NVIDIA's advice: {action.value}",
        command=f"dmesg -T | grep {quote(f'Xid.*{xid.bus}')}",
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
        "GPU. Codes of applications (13, 31, 43, 45) pass. An Xid that asks for a reset only "
        "warns where the driver no longer names a recovery action. A log that may not be read is "
        "unknown.",
        fix="As the finding says: reset the GPU, restart the node, or have it repaired.",
        source="NVIDIA Xid catalogue, release 590, column of immediate actions.",
    ),
    probes=(kernel_log.PROBE, nvidia_gpus.PROBE),
    judge=_judge,
)
