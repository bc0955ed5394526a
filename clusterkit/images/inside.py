"""What is inside a built image: read from the image itself, not from what should be there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from clusterkit.core.commands import Answer
from clusterkit.core.data import data_dir
from clusterkit.core.distribution import normal_name
from clusterkit.core.errors import RemoteError
from clusterkit.core.version import __version__
from clusterkit.images import engine
from clusterkit.images.engine import Present

PYTHON = "/opt/venv/bin/python"
_LOOK_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an image says of itself."""

    system: str
    user: str
    python: str
    torch: str | None
    torch_cuda: str | None
    torch_hip: str | None
    python_packages: Mapping[str, str]
    debian_packages: Mapping[str, str]


def read_manifest(image: str) -> Manifest:
    """Look into an image.

    Raises:
        RemoteError: it cannot be run, or is none of ours.
    """
    answer = run_program("manifest.py", image, "--network=none")
    if answer.code:
        raise RemoteError(f"cannot look into {image}: {last_line(answer.errors)}")
    found: dict[str, Any] = json.loads(answer.output)
    return Manifest(**found)


def run_program(name: str, image: str, *options: str) -> Answer:
    """Run a program of `images/` by the Python of an image."""
    program = (data_dir("images") / name).read_text(encoding="utf-8")
    arguments = ("run", "--rm", *options, "--entrypoint", PYTHON, image, "-I", "-c", program)
    return engine.ask(*arguments, timeout_s=_LOOK_S)


def last_line(errors: str) -> str:
    """Return the last line of a program's stderr."""
    return next(reversed(errors.strip().splitlines()), "it says nothing")


def bill_of_materials(tag: str, present: Present, inside: Manifest) -> Mapping[str, Any]:
    """Return the packages of an image as CycloneDX 1.5 (cyclonedx.org/docs/1.5/json)."""
    distribution = inside.system.split()[0].lower()
    found = [
        (name, version, f"pkg:pypi/{normal_name(name)}@{quote(version)}")
        for name, version in inside.python_packages.items()
    ]
    found += [
        (name, version, f"pkg:deb/{distribution}/{name}@{quote(version)}")
        for name, version in inside.debian_packages.items()
    ]
    tool = {"type": "application", "name": "clusterkit", "version": __version__}
    image = {"type": "container", "name": tag, "bom-ref": tag, "version": present.id}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"tools": {"components": [tool]}, "component": image},
        "components": [
            {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
            for name, version, purl in found
        ],
    }
