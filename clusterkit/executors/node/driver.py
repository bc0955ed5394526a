"""The driver of the GPUs of a machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_DRIVERS = (Path("/sys/module/nvidia/version"), Path("/sys/module/amdgpu/version"))
"""The version of a module, by the kernel (Linux, Documentation/ABI/stable/sysfs-module)."""
_LONGEST = 64


def gpu_driver() -> str | None:
    """Return name and version of this machine's driver, None without one; no program is asked."""
    for path in _DRIVERS:
        with suppress(OSError):
            return f"{path.parent.name} {path.read_text(errors='replace').strip()}"[:_LONGEST]
    return None
