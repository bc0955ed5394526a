"""GPU012: errors of NVSwitches in the kernel log since boot."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.probes.gpu import kernel_log
from clusterkit.preflight.probes.gpu.kernel_log import KernelLog


def _judge(evidence: Evidence) -> Judgement:
    return each(evidence, kernel_log.PROBE, _rule)


def _rule(log: KernelLog) -> Ruling:
    if not log.sxids:
        return passed("no error of an NVSwitch")
    fatal = [sxid for sxid in log.sxids if sxid.fatal]
    codes = ", ".join(str(code) for code in sorted({sxid.code for sxid in fatal or log.sxids}))
    return Ruling(
        verdict=Verdict.FAIL if fatal else Verdict.WARN,
        summary=f"NVSwitch: {'fatal ' if fatal else ''}SXid {codes}",
        evidence="\n".join(f"{s.bus} SXid {s.code} x{s.count}: {s.detail}" for s in log.sxids),
        hint="restart the fabric manager and reset all GPUs, or reboot the node"
        if fatal
        else "watch it; with Xid 74 on a GPU, the switch is the cause",
        command="dmesg -T | grep SXid",
    )


CHECK = Check(
    id="GPU012",
    name="gpu-nvswitch",
    about=About(
        what="The NVSwitches of the node have logged no error since boot.",
        why="All GPUs of an HGX node talk through them.",
        how="Lines with `SXid` in `dmesg`, else `journalctl -k -b`; `Fatal` fails, others warn.",
        fix="Restart nvidia-fabricmanager and reset the GPUs, or reboot the node.",
        source="NVIDIA Fabric Manager User Guide, NVSwitch SXid errors.",
    ),
    probes=(kernel_log.PROBE,),
    judge=_judge,
)
