"""What each Xid is, and what it asks for, by NVIDIA's catalogue (`xids.tsv`).

Diagnose takes the codes that are no fault of a node from here, too.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from clusterkit.core.data import read_table

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


def _read() -> tuple[Mapping[int, XidAction], Mapping[int, str]]:
    actions: dict[int, XidAction] = {}
    names: dict[int, str] = {}
    for row in read_table(Path(__file__).with_name("xids.tsv")):
        for part in row["codes"].split(","):
            first, _, last = part.partition("-")
            for code in range(int(first), int(last or first) + 1):
                actions[code] = _BY_RESOLUTION.get(row["resolution"], XidAction.WATCH)
                names[code] = row["name"]
    # Ignored for what runs; but the log says "reset gpu to activate".
    return {**actions, _REMAPPED: XidAction.ACTIVATE}, names


_ACTIONS, _NAMES = _read()


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
