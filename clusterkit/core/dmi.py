"""What the firmware of this machine calls it (SMBIOS, as Linux shows it in `/sys/class/dmi/id`)."""

from __future__ import annotations

import os
from pathlib import Path

_LONGEST = 256


def machine_root() -> Path:
    """Return the folder that stands for `/` where a machine is recognised; tests have their own."""
    return Path(os.environ.get("CLUSTERKIT_MACHINE_ROOT") or "/")


def read_dmi(root: Path, name: str) -> str:
    """Return what a file of the machine's DMI says; empty where it is missing or closed to us."""
    try:
        with (root / "sys/class/dmi/id" / name).open("rb") as file:
            return file.read(_LONGEST).decode("utf-8", "replace").strip()
    except OSError:
        return ""
