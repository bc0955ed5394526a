"""What the NVIDIA driver wrote into the kernel log since boot: Xid and SXid lines.

A log that may not be read is unknown: journalctl shows a plain user an empty log and calls it a
success, so an empty log does not count as read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterkit.probes.base import Probe, Unparsed, first_line
from clusterkit.probes.nvidia import nvidia

_KEPT = 400
"""Lines of the driver that come back; of a flood the last ones."""

# dmesg first: the ring of the running kernel and nothing else. It may have wrapped, or be closed
# to users (kernel.dmesg_restrict), where the journal may still be open to them.
_SNIPPET = f"""log=$(dmesg 2>/dev/null) && from=dmesg || {{
log=$(journalctl -k -b -q --no-pager -o short-monotonic 2>/dev/null); from=journalctl; }}
case $log in *[0-9]*) ;; *)
broken; echo 'kernel log: permission denied (dmesg and journalctl -k)' >&2; exit 1 ;; esac
echo "log $from"
printf '%s\\n' "$log" | grep -E 'NVRM: .*Xid|SXid' | tail -n {_KEPT}
exit 0
"""
# NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s ...
# NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 13, ...    in MIG mode;  Xid (0000:03:00): 6   before r300
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^()]*\): (\d{1,4})\b"
    r"(.*)"
)
_XID_BEGINS = re.compile(r"NVRM: Xid \(")
_PID = re.compile(r"\bpid='?(\d{1,10})")
# nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
_SXID = re.compile(r"SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,6})\b(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An error code on one GPU, however often it was logged."""

    code: int
    bus: str
    """PCI address as the kernel writes it, such as `0000:9b:00`."""
    count: int
    pid: int | None
    """Of the first occurrence."""
    detail: str
    """Text of the last occurrence, as far as the log has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog:
    """What the driver logged since boot."""

    xids: tuple[Xid, ...]
    sxids: tuple[Xid, ...]
    """Of NVSwitches."""


def parse(text: str) -> KernelLog:
    """Read `log SOURCE` and the lines of the driver below it."""
    head, _, body = text.partition("\n")
    if head.strip() not in {"log dmesg", "log journalctl"}:
        raise Unparsed(f"no kernel log: {first_line(text)[:60]!r}")
    return read_kernel_log(body)


def read_kernel_log(text: str) -> KernelLog:
    """Read any kernel log; raises `Unparsed` on a line that begins an Xid and is none we know."""
    xids: dict[tuple[int, str], Xid] = {}
    sxids: dict[tuple[int, str], Xid] = {}
    for line in text.splitlines():
        if "SXid" in line:
            if found := _SXID.search(line):
                _count(sxids, found)
        elif "Xid" in line:
            if found := _XID.search(line):
                _count(xids, found)
            elif _XID_BEGINS.search(line):
                raise Unparsed(f"no Xid: {first_line(line)[-60:]!r}")
    return KernelLog(xids=tuple(xids.values()), sxids=tuple(sxids.values()))


def _count(into: dict[tuple[int, str], Xid], found: re.Match[str]) -> None:
    code, bus, detail = int(found[2]), found[1].lower(), found[3].lstrip(", ").strip()
    before = into.get((code, bus))
    pid = _PID.search(detail)
    into[code, bus] = Xid(
        code=code,
        bus=bus,
        count=(before.count if before else 0) + 1,
        pid=before.pid if before else int(pid[1]) if pid else None,
        detail=first_line(detail)[:160],
    )


PROBE = Probe(name="kernel-log", command=nvidia(_SNIPPET), parse=parse)
