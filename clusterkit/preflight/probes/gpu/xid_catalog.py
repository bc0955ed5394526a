"""NVIDIA's catalogue of Xids: what each code is, and what it asks for.

The resolutions are the column "Immediate Action" of the Xid catalogue in NVIDIA's GPU driver
documentation (releases 555 to 610); older GPUs have a few codes more. Diagnose takes the codes
that are no fault of a node from here, too.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterkit.preflight.probes.gpu.kernel_log import Xid


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


# Codes, NVIDIA's resolution, what it is. `-`: the catalogue has no resolution.
_CATALOGUE = """\
6 - invalid push buffer stream
8 RESTART_APP GPU stopped processing
11,25,32 RESTART_APP invalid push buffer stream
13 RESTART_APP graphics engine exception
14 IGNORE
31 RESTART_APP illegal memory access
37,38 IGNORE driver firmware error
39-41,70-72,75-77,85,126-135 RESTART_APP copy engine exception
43 IGNORE GPU stopped processing
44 IGNORE fault during context switch
45 WORKFLOW_XID_45 channel removed after an earlier error
46 RESET_GPU GPU stopped processing
48 WORKFLOW_XID_48 double-bit ECC error
54 CHECK_MECHANICALS auxiliary power is not connected
56 - display engine error
57,58 - video memory interface error
59,61 - internal micro-controller error
60 RESTART_APP video processor exception
62 RESET_GPU internal micro-controller halt
63 IGNORE row remap or page retirement recorded
64 RESET_GPU row remap or page retirement failed
66,67 IGNORE illegal access by the driver
65 - video processor exception
68,83,84,88,89,96-98 RESTART_APP video decoder exception
69 RESTART_APP graphics engine class error
73 - video encoder error
74 WORKFLOW_NVLINK_ERR NVLink error
78 UPDATE_SWFW vGPU does not start
79 RESTART_BM fallen off the bus
80 RESTART_APP corrupted data sent to the GPU
82,99-105 RESTART_APP JPEG decoder error
86,139 RESTART_APP optical flow error
92 IGNORE many single-bit ECC errors
93 IGNORE InfoROM wear limit
94 RESTART_APP contained memory error
95 RESET_GPU uncontained memory error
106,107 IGNORE test message
108 IGNORE NVLink remote translation error
109 RESET_GPU context switch time-out
110 RESET_GPU security fault
119 RESET_GPU GSP does not answer
120 RESET_GPU GSP error
121 IGNORE C2C link error
136 RESET_GPU NVLink training failed
137 IGNORE NVLink privilege error
140 RESET_GPU unrecovered ECC error
141 IGNORE CUDA fast path error
142 CONTACT_SUPPORT video encoder error
143 RESET_GPU the GPU did not initialise
144-150 WORKFLOW_NVLINK5_ERR NVLink error
151 RESTART_VM key rotation error
152,153 IGNORE DLA error
154 XID_154 recovery action changed
155 RESET_GPU NVLink error
156 RESET_GPU memory retired
157 IGNORE memory could not be retired
158 RESET_GPU GPU fatal time-out
159 CHECK_UVM CHI error
160,161 IGNORE channel retirement
162-165 - power smoothing
166,170 - NVLink encryption
167 - PCIe fatal time-out
168 RESTART_BM errors in the write protected region
169 - internal micro-controller halt
171 - uncorrectable DRAM error, see Xid 48
172 - uncorrectable SRAM error, see Xid 48
"""
_BY_RESOLUTION = {
    "RESTART_APP": XidAction.NOTHING,
    "IGNORE": XidAction.NOTHING,
    # Alone, it is what a process that is killed leaves; with another Xid, that one decides.
    "WORKFLOW_XID_45": XidAction.NOTHING,
    "WORKFLOW_XID_48": XidAction.RESET,
    "WORKFLOW_NVLINK_ERR": XidAction.RESET,
    "RESET_GPU": XidAction.RESET,
    "RESTART_BM": XidAction.REBOOT,
    "RESTART_VM": XidAction.REBOOT,
    "CHECK_MECHANICALS": XidAction.REPAIR,
    "UPDATE_SWFW": XidAction.UPDATE,
    "CONTACT_SUPPORT": XidAction.REPORT,
}
FALLEN_OFF, NOT_INITIALISED = 79, 143
RECOVERY_ACTION = 154
_REMAPPED = 63
NVLINK5 = range(144, 151)
"""They say themselves whether they are fatal."""


def _read(text: str) -> tuple[Mapping[int, XidAction], Mapping[int, str]]:
    actions: dict[int, XidAction] = {}
    names: dict[int, str] = {}
    for line in text.splitlines():
        codes, resolution, *name = line.split(" ", 2)
        for part in codes.split(","):
            first, _, last = part.partition("-")
            for code in range(int(first), int(last or first) + 1):
                actions[code] = _BY_RESOLUTION.get(resolution, XidAction.WATCH)
                names[code] = "".join(name)
    # Ignored for what runs; but the log says "reset gpu to activate".
    return {**actions, _REMAPPED: XidAction.ACTIVATE}, names


_ACTIONS, _NAMES = _read(_CATALOGUE)


def xid_action(xid: Xid) -> XidAction:
    """Return what `xid` asks for; `WATCH` where the catalogue has no clear answer."""
    if xid.code == RECOVERY_ACTION:
        return _recovery_action(xid.detail)
    if xid.code in NVLINK5:
        return XidAction.RESET if xid.fatal else XidAction.WATCH
    if xid.cause is not None:
        # Its own line is not in the log, which would say whether it was fatal.
        return _of(xid.cause)
    return _of(xid.code)


def _of(code: int) -> XidAction:
    return _ACTIONS.get(code, XidAction.WATCH)


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
