"""What NVIDIA says is to be done after an Xid: its catalogue's "immediate action", release 590."""

from __future__ import annotations

import re
from enum import StrEnum

from clusterkit.probes.kernel_log import Xid


class XidAction(StrEnum):
    """What an Xid asks for."""

    NOTHING = "nothing to do for the node"
    """A mistake of the application, or a note."""
    WATCH = "none for sure; watch the GPU, and test it if this comes back"
    ACTIVATE = "reset the GPU when it is free; what was recorded takes effect then"
    RESET = "reset the GPU"
    REBOOT = "restart the node"
    REPAIR = "check cables and seating"


_BY_CODE = {
    XidAction.ACTIVATE: (63,),
    XidAction.NOTHING: (13, 31, 43, 45, 92, 121),
    XidAction.RESET: (48, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
    XidAction.REBOOT: (79, 151, 168),
    XidAction.REPAIR: (54,),
}
_ACTIONS = {code: action for action, codes in _BY_CODE.items() for code in codes}
_RECOVERY_ACTION_CHANGED = 154
_NVLINK5 = range(144, 151)
_FATAL = re.compile(r"\bFatal\b")  # and not "Nonfatal"
_NAMES = {
    13: "graphics engine exception",
    31: "illegal memory access",
    48: "double-bit ECC error",
    63: "row remap or page retirement recorded",
    64: "row remap or page retirement failed",
    74: "NVLink error",
    79: "fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP does not answer",
    120: "GSP error",
    154: "recovery action changed",
}


def xid_action(xid: Xid) -> XidAction:
    """Return what `xid` asks for; `WATCH` where the catalogue has no clear answer."""
    if xid.code == _RECOVERY_ACTION_CHANGED:
        return _recovery_action(xid.detail)
    if xid.code in _NVLINK5:
        return XidAction.RESET if _FATAL.search(xid.detail) else XidAction.WATCH
    return _ACTIONS.get(xid.code, XidAction.WATCH)


def xid_name(xid: Xid) -> str:
    """Return `Xid 79 (fallen off the bus)`."""
    name = _NAMES.get(xid.code)
    return f"Xid {xid.code}" + (f" ({name})" if name else "")


def _recovery_action(detail: str) -> XidAction:
    """Read `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`."""
    to = detail.rpartition(" to ")[2].lower()
    if "reboot" in to:
        return XidAction.REBOOT
    if "reset" in to or "drain" in to:
        return XidAction.RESET
    return XidAction.NOTHING if "none" in to else XidAction.WATCH
