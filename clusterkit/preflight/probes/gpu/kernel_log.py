"""What the NVIDIA driver wrote into the kernel log since boot, and what its Xids ask for.

What each Xid is stands in `xids.tsv`, by NVIDIA's catalogue.

A log that may not be read is unknown: journalctl shows a plain user an empty log and calls it a
success, so an empty log does not count as read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from clusterkit.core.data import read_snippet, read_table
from clusterkit.preflight.probes.gpu.nvidia import nvidia
from clusterkit.transport.probe import Probe, Unparsed, first_line

# NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s ...
# NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 13, ...    in MIG mode;  Xid (0000:03:00): 6   before r300
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([\w:.*-]{1,40})[^()]*\):? (\d{1,6})\b(.*)")
_XID_BEGINS = re.compile(r"NVRM: Xid \(")
# nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
_SXID = re.compile(r"SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,6})\b(.*)")
# Lines that follow one of the same code: they say nothing that a reader would miss.
_CONTINUED = re.compile(r"(?:Data|Severity)\b")
_FATAL = re.compile(r"\bFatal\b")  # and not "Nonfatal" or "Non-fatal"
_CAUSE = re.compile(r"caused by previous Xid (\d{1,4})")
_BUS = re.compile(r"\b(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?\b")
# NVRM: GPU 0000:09:00.0: GPU has fallen off the bus.     or, in three lines of one message:
# NVRM: The NVIDIA GPU 0000:18:00.0 / (PCI ID: ...) installed in this system has / fallen off ...
_NAMED = "The NVIDIA GPU "
FALLEN_OFF, NOT_INITIALISED = 79, 143
_LOST = {"fallen off the bus": FALLEN_OFF, "RmInitAdapter failed": NOT_INITIALISED}
# nvidia 0000:41:00.0: Unable to change power state from D3cold to D0, device inaccessible: the
# kernel's words for a device that answers no read (drivers/pci/pci.c).
_GONE = re.compile(r"\bnvidia ([0-9a-f:.]{7,16}): [^:]{0,80}device inaccessible")
_SEGFAULT = re.compile(r"([^\s\[\]:]{1,40})\[\d+\]: segfault at .{0,120} in libnccl")
_CARRIER = re.compile(r"\b((?:ib|en|eth|rdma|mlx|bond|hsn|roce)[\w.-]{0,30}): [Ll]ost carrier")


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An error code on one GPU, however often it was logged."""

    code: int
    bus: str
    """PCI address as the kernel writes it, such as `0000:9b:00`."""
    count: int
    detail: str
    """Text of the last occurrence, as far as the log has it."""
    last: int = 0
    """Number of the line of the last occurrence."""
    fatal: bool = False
    """Whether one of the lines says so (NVLink of Blackwell, NVSwitches)."""
    cause: int | None = None
    """The Xid that this one says it was caused by."""
    numbered: bool = True
    """Whether the driver gave the number, or told it in words only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog:
    """What the driver logged since boot."""

    xids: tuple[Xid, ...]
    sxids: tuple[Xid, ...]
    """Of NVSwitches."""
    crashes: Mapping[str, int]
    """Programs that crashed in libnccl, and how often."""
    peermem: int
    """Complaints of nvidia-peermem of an invalid context."""
    flaps: Mapping[str, int]
    """How often interfaces lost their carrier, in a day."""


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
    lines = text.splitlines()
    named = ""
    for number, line in enumerate(lines):
        if "SXid" in line:
            if found := _SXID.search(line):
                _count(sxids, number, int(found[2]), found[1], found[3])
        elif found := _XID.search(line):
            _count(xids, number, int(found[2]), found[1], found[3])
        elif _XID_BEGINS.search(line):
            raise Unparsed(f"no Xid: {first_line(line)[-60:]!r}")
        else:
            message = line.partition("NVRM: ")[2]
            lost = next((code for phrase, code in _LOST.items() if phrase in line), None)
            if gone := _GONE.search(line):
                message, lost = gone[1], FALLEN_OFF
            bus = _bus(message) or named or "a GPU"
            if lost is not None and (lost, bus) not in xids:
                _count(xids, number, lost, bus, message or line, numbered=False)
            named = _bus(message) if message.startswith(_NAMED) else named
    return KernelLog(
        xids=tuple(xids.values()),
        sxids=tuple(sxids.values()),
        crashes=Counter(match[1] for line in lines if (match := _SEGFAULT.search(line))),
        peermem=sum("peermem" in line and "invalid context" in line for line in lines),
        flaps=Counter(match[1] for line in lines if (match := _CARRIER.search(line))),
    )


def _bus(text: str) -> str:
    found = _BUS.search(text)
    return f"{found[1] or '0000'}:{found[2]}".lower() if found else ""


def _count(
    into: dict[tuple[int, str], Xid],
    number: int,
    code: int,
    bus: str,
    message: str,
    *,
    numbered: bool = True,
) -> None:
    bus, detail = bus.lower(), message.lstrip(", ").strip()
    before = into.get((code, bus))
    cause = _CAUSE.search(detail)
    continued = before is not None and _CONTINUED.match(detail)
    into[code, bus] = Xid(
        code=code,
        bus=bus,
        count=(before.count if before else 0) + (not continued),
        detail=before.detail if before and continued else first_line(detail)[:160],
        last=number,
        fatal=bool(_FATAL.search(detail)) or (before is not None and before.fatal),
        cause=int(cause[1]) if cause else before.cause if before else None,
        numbered=numbered,
    )


class XidAction(StrEnum):
    """What an Xid asks for."""

    NOTHING = "nothing to do for the node"
    """A mistake of the application, or a note."""
    WATCH = "none for sure; watch the GPU, and test it if this comes back"
    REPORT = "report it to the vendor if it comes back"
    UPDATE = "update driver and firmware"
    ACTIVATE = "reset the GPU when it is free; what was recorded takes effect then"
    RESET = "reset the GPU"
    REBOOT = "restart the node"
    REPAIR = "check cables and seating"


_BY_RESOLUTION = {
    row["resolution"]: XidAction[row["action"]] for row in read_table(__file__, "resolutions.tsv")
}
RECOVERY_ACTION = 154
_REMAPPED = 63
NVLINK5 = range(144, 151)
"""They say themselves whether they are fatal."""


_ROWS = {
    code: row
    for row in read_table(__file__, "xids.tsv")
    for first, _, last in (part.partition("-") for part in row["codes"].split(","))
    for code in range(int(first), int(last or first) + 1)
}
_NAMES = {code: row["name"] for code, row in _ROWS.items()}
_ACTIONS = {
    code: _BY_RESOLUTION.get(row["resolution"], XidAction.WATCH) for code, row in _ROWS.items()
}
_ACTIONS[_REMAPPED] = XidAction.ACTIVATE
"""Ignored for what runs; but the log says "reset gpu to activate"."""


def xid_action(xid: Xid) -> XidAction:
    """Return what `xid` asks for; `WATCH` where the catalogue has no clear answer."""
    if xid.code == RECOVERY_ACTION:
        return _recovery_action(xid.detail)
    if xid.code in NVLINK5:
        return XidAction.RESET if xid.fatal else XidAction.WATCH
    # Where another one caused it, whose own line is not in the log, that one decides.
    return _ACTIONS.get(xid.code if xid.cause is None else xid.cause, XidAction.WATCH)


def xid_name(xid: Xid) -> str:
    """Return `Xid 79 (fallen off the bus)`; the words alone where the driver gave no number."""
    name = _NAMES.get(xid.code)
    if not xid.numbered and name:
        return name
    after = f", after Xid {xid.cause}" if xid.cause is not None else ""
    return f"Xid {xid.code}{after}" + (f" ({name})" if name else "")


def harmless_lines() -> str:
    """Return an expression for lines of Xids that are no fault of the node."""
    codes = "|".join(
        str(code)
        for code, action in sorted(_ACTIONS.items())
        if action in {XidAction.NOTHING, XidAction.ACTIVATE} or code == RECOVERY_ACTION
    )
    nvlink5 = f"(?:{'|'.join(map(str, NVLINK5))})\\b(?!.*\\bFatal\\b)"
    return rf"NVRM: Xid \([^()]*\): (?:(?:{codes})\b|{nvlink5})"


def _recovery_action(detail: str) -> XidAction:
    """Read `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`.

    The words are those of NVML, nvmlDeviceGpuRecoveryAction_t.
    """
    to = detail.rpartition(" to ")[2].lower()
    if "reboot" in to:
        return XidAction.REBOOT
    if re.search("reset|drain|recover", to):
        return XidAction.RESET
    return XidAction.NOTHING if "none" in to else XidAction.WATCH


PROBE = Probe(name="kernel-log", command=nvidia(read_snippet("kernel_log")), parse=parse)
