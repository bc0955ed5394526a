"""Why torch in an image sees no GPU: what the image, the container and the machine have.

A CUDA program needs a driver of the machine that is new enough for its CUDA; the container's
runtime has to bring that driver's libraries and devices in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit.core.errors import Problem
from clusterkit.images.catalogue import Variant

OLDEST_DRIVER: Mapping[int, int] = {11: 450, 12: 525, 13: 580}
"""CUDA's major version -> first branch of the driver that runs it (NVIDIA, CUDA Compatibility,
minor version compatibility)."""

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
AMD_DRIVER = Path("/dev/kfd")
_NOT_STARTED = re.compile(r"error 802|system not yet initialized", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What torch in a container says of GPUs."""

    torch: str
    cuda: str | None
    """CUDA that torch is built for."""
    hip: str | None
    count: int
    said: tuple[str, ...]
    """What torch complained of."""
    devices: tuple[str, ...]
    driver: str
    """The text of /proc/driver/nvidia/version, which containers share with their machine."""
    visible: str | None
    """CUDA_VISIBLE_DEVICES."""


def read_seen(document: Mapping[str, Any]) -> Seen:
    """Return what images/gpus.py printed."""
    lists = {name: tuple(document[name]) for name in ("said", "devices")}
    return Seen(**{**document, **lists})


def driver_version(text: str) -> str:
    """Return the version in the text of /proc/driver/nvidia/version; empty where there is none."""
    found = re.search(r"\b\d{3}(\.\d+)+\b", text)
    return found.group() if found else ""


def explain(variant: Variant, seen: Seen) -> Problem | None:
    """Return why torch does not see the GPUs that its variant is for; None where it does."""
    built_for = {Variant.CUDA: seen.cuda, Variant.ROCM: seen.hip}.get(variant, "cpu")
    if variant is Variant.CPU or (seen.count and not seen.said):
        return None
    if built_for is None:
        return Problem(
            message=f"torch {seen.torch} in the image is not built for {variant}",
            hint="the lock file or an index of packages brought another build: "
            "clusterkit images show NAME --json",
        )
    if variant is Variant.ROCM:
        return _no_amd(seen)
    return _no_nvidia(seen)


def _no_nvidia(seen: Seen) -> Problem:
    said = "; ".join(seen.said) or "torch sees no GPU and does not say why"
    driver = driver_version(seen.driver)
    needed = OLDEST_DRIVER.get(int((seen.cuda or "0").partition(".")[0]))
    if not driver:
        return Problem(
            message="this machine runs no NVIDIA driver", hint="nvidia-smi; modprobe nvidia"
        )
    if needed is not None and int(driver.partition(".")[0]) < needed:
        return Problem(
            message=f"the machine's NVIDIA driver {driver} is too old for CUDA {seen.cuda}, which "
            f"torch {seen.torch} in the image is built for ({said})",
            hint=f"install driver {needed} or later on the machine, or take an image with an older "
            "CUDA; no change inside the image helps",
        )
    if not seen.devices:
        return Problem(
            message=f"the container was given no GPU, though the machine has a driver ({driver})",
            hint="docker run --gpus all; it needs nvidia-container-toolkit: "
            "nvidia-ctk runtime configure --runtime=docker, then restart Docker",
        )
    if seen.visible is not None and not seen.count:
        return Problem(
            message=f"CUDA_VISIBLE_DEVICES={seen.visible!r} hides all GPUs",
            hint="unset it, or name devices that are there: nvidia-smi -L",
        )
    if any(_NOT_STARTED.search(line) for line in seen.said):
        return Problem(
            message=f"the GPUs have not joined their NVSwitch fabric ({said})",
            hint="systemctl status nvidia-fabricmanager on the machine",
        )
    return Problem(
        message=f"torch does not reach the GPUs ({said})", hint="nvidia-smi on the machine"
    )


def _no_amd(seen: Seen) -> Problem:
    said = "; ".join(seen.said) or "torch sees no GPU and does not say why"
    if not seen.devices:
        return Problem(
            message="the container was given no AMD GPU",
            hint="docker run --device /dev/kfd --device /dev/dri --group-add video; "
            "without /dev/kfd the machine lacks the driver amdgpu",
        )
    return Problem(
        message=f"torch does not reach the GPUs ({said})", hint="rocm-smi on the machine"
    )
