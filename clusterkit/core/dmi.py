"""What the firmware of this machine calls it (SMBIOS, as Linux shows it in `/sys/class/dmi/id`)."""

from __future__ import annotations

import os
from pathlib import Path

CLOUDS = {
    "aws": ("sys_vendor", "Amazon EC2"),
    "azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
    "gcp": ("product_name", "Google Compute Engine"),
    "oci": ("chassis_asset_tag", "OracleCloud.com"),
}
"""A file of `/sys/class/dmi/id` and what it says on machines of each cloud, as the data sources of
canonical/cloud-init have it."""
_LONGEST = 256


def machine_root() -> Path:
    """Return the folder that stands for `/` where a machine is recognised; tests have their own."""
    return Path(os.environ.get("CLUSTERKIT_MACHINE_ROOT") or "/")


def cloud_of(root: Path) -> str | None:
    """Return which of `CLOUDS` the machine with these files is of; None for none."""
    signs = CLOUDS.items()
    return next((cloud for cloud, (name, says) in signs if read_dmi(root, name) == says), None)


def read_dmi(root: Path, name: str) -> str:
    """Return what a file of the machine's DMI says; empty where it is missing or closed to us."""
    try:
        with (root / "sys/class/dmi/id" / name).open("rb") as file:
            return file.read(_LONGEST).decode("utf-8", "replace").strip()
    except OSError:
        return ""
