"""Prove a built image: its torch sees the driver, and its own health test trains on two ranks.

A CUDA program needs a driver of the machine that is new enough for its CUDA; the container's
runtime has to bring that driver's libraries and devices in.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit.core.commands import TIMED_OUT, Answer
from clusterkit.core.data import read_table
from clusterkit.core.errors import Problem, UserError
from clusterkit.images import engine
from clusterkit.images.catalogue import HEALTH, Image, Variant, lineage
from clusterkit.images.inside import last_line, run_program
from clusterkit.images.scan import Scan, scan

OLDEST_DRIVER: Mapping[int, int] = {11: 450, 12: 525, 13: 580}
"""CUDA's major version -> first branch of the driver that runs it (NVIDIA, CUDA Compatibility,
minor version compatibility)."""

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
AMD_DRIVER = Path("/dev/kfd")
_NOT_STARTED = re.compile(r"error 802|system not yet initialized", re.IGNORECASE)


_SHOWN_LINES = 40
_NO_RUNTIME = "could not select device driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What torch in a container says of GPUs."""

    torch: str
    cuda: str | None
    """CUDA that torch is built for."""
    hip: str | None
    count: int
    messages: tuple[str, ...]
    """What torch complained of."""
    devices: tuple[str, ...]
    driver: str
    """The text of /proc/driver/nvidia/version, which containers share with their machine."""
    visible: str | None
    """CUDA_VISIBLE_DEVICES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How an image did."""

    name: str
    variant: str
    tag: str
    healthy: bool
    gpus: int
    """That torch sees inside."""
    output: str
    """The end of what its health test printed."""
    problem: Problem | None
    skipped: str | None
    """What could not be tested here, and why."""
    scan: Scan
    seconds: float


def prove(
    image: Image,
    variant: Variant,
    tag: str,
    *,
    network: str | None,
    timeout_s: float,
    scanned: bool,
) -> Health:
    """Run the health test of an image that is built here; if `scanned`, look for vulnerabilities.

    Raises:
        UserError: it is not built here, or no engine answers.
    """
    engine.require_engine("test")
    if engine.inspect(tag) is None:
        raise UserError(
            f"{tag} is not built here", hint=f"clusterkit images build {image.name}:{variant}"
        )
    started = time.monotonic()
    devices, skipped = _devices(variant)
    # Without a network nothing resolves the container's own name, and torchrun asks for it.
    alone = ("--network=none", "--hostname=localhost")
    joined = alone if network is None else (f"--network={network}",)
    run = (*joined, "--shm-size=1g", *devices)
    gpus, problem = _look(image, variant, tag, run, with_gpus=bool(devices))
    output = ""
    if problem is None:
        answer = engine.ask("run", "--rm", *run, tag, HEALTH, timeout_s=timeout_s)
        output = "\n".join((answer.output + answer.errors).strip().splitlines()[-_SHOWN_LINES:])
        problem = _result(tag, answer, timeout_s)
    return Health(
        name=image.name,
        variant=variant,
        tag=tag,
        healthy=problem is None,
        gpus=gpus,
        output=output,
        problem=problem,
        skipped=skipped,
        scan=scan(tag) if scanned else Scan(not_scanned="--no-scan"),
        seconds=round(time.monotonic() - started, 1),
    )


def _devices(variant: Variant) -> tuple[tuple[str, ...], str | None]:
    """Return the arguments that bring this machine's GPUs in, or why there are none."""
    if variant is Variant.CUDA:
        if NVIDIA_DRIVER.exists():
            return ("--gpus=all",), None
        return (), "no NVIDIA driver on this machine: tested without a GPU"
    if variant is Variant.ROCM:
        if AMD_DRIVER.exists():
            return ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=video"), None
        return (), "no AMD GPU on this machine: tested without a GPU"
    return (), None


def _look(
    image: Image, variant: Variant, tag: str, run: Sequence[str], *, with_gpus: bool
) -> tuple[int, Problem | None]:
    if not with_gpus or not any(known.name == "torch" for known in lineage(image)):
        return 0, None
    answer = run_program("gpus.py", tag, *run)
    if _NO_RUNTIME in answer.errors:
        return 0, Problem(
            message="Docker here cannot bring GPUs into containers: it has no NVIDIA runtime",
            hint="install nvidia-container-toolkit; nvidia-ctk runtime configure --runtime=docker; "
            "restart Docker",
        )
    if answer.code:
        why = last_line(answer.errors)
        return 0, Problem(message=f"torch cannot be imported in {tag}: {why}")
    try:
        seen = read_seen(json.loads(answer.output))
    except ValueError:
        return 0, Problem(
            message=f"{tag} says more than what its torch sees: {answer.output.strip()[:200]!r}",
            hint=f"look for what prints at the start of Python: docker run --rm {tag} python -c ''",
        )
    return seen.count, explain(variant, seen)


def _result(tag: str, answer: Answer, timeout_s: float) -> Problem | None:
    if answer.code == 0:
        return None
    if answer.code == TIMED_OUT:
        return Problem(
            message=f"the health test did not end in {timeout_s:.0f} s", hint="--timeout SECONDS"
        )
    return Problem(
        message=f"the health test ended with code {answer.code}",
        hint=f"look for yourself: docker run --rm -it {tag} bash, then {HEALTH}",
    )


def read_seen(document: Mapping[str, Any]) -> Seen:
    """Return what images/gpus.py printed."""
    lists = {name: tuple(document[name]) for name in ("messages", "devices")}
    return Seen(**{**document, **lists})


def explain(variant: Variant, seen: Seen) -> Problem | None:
    """Return why torch does not see the GPUs that its variant is for; None where it does."""
    if variant is Variant.CPU or (seen.count and not seen.messages):
        return None
    found = re.search(r"\b\d{3}(\.\d+)+\b", seen.driver)
    driver = found.group() if found else "0"
    needed = OLDEST_DRIVER.get(int((seen.cuda or "0").partition(".")[0]), 0)
    nvidia = {
        "no-driver": not found,
        "old-driver": int(driver.partition(".")[0]) < needed,
        "no-gpu": not seen.devices,
        "hidden": seen.visible is not None and not seen.count,
        "no-fabric": any(_NOT_STARTED.search(line) for line in seen.messages),
    }
    built_for, cases = seen.cuda, nvidia
    if variant is Variant.ROCM:
        built_for, cases = seen.hip, {"no-amd-gpu": not seen.devices}
    cases = {"not-built": built_for is None, **cases}
    case = next((name for name, so in cases.items() if so), str(variant))
    messages = "; ".join(seen.messages) or "torch sees no GPU and does not say why"
    rows = {row["id"]: row for row in read_table(__file__, "health.tsv")}
    message, hint = (
        rows[case][text].format(
            seen, variant=variant, messages=messages, driver=driver, needed=needed
        )
        for text in ("message", "hint")
    )
    return Problem(message=message, hint=hint)
