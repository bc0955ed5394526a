"""The Docker client and engine of this machine: what they can do, or in words what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusterkit.core.commands import MISSING, Answer, run_command
from clusterkit.core.docker_errors import docker_trouble
from clusterkit.core.errors import UserError

_ASK_S = 30.0
_NEEDS_BUILDX = 23
"""First release of the client that builds with BuildKit only through its plugin buildx."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What builds here."""

    client: str
    server: str
    buildx: bool
    driver: str
    """Of the builder; `docker` is the engine itself, others do not see the engine's images."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What the client's environment lacks for BuildKit."""
        return {} if self.buildx else {"DOCKER_BUILDKIT": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """An image that the engine has."""

    id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    size_bytes: int
    repo_digests: tuple[str, ...]
    """NAME@sha256:.. where a registry has it."""
    created: str


def ask(*words: str, timeout_s: float = _ASK_S) -> Answer:
    """Run `docker WORDS`."""
    return run_command(("docker", *words), timeout_s=timeout_s)


def require(answer: Answer, doing: str) -> str:
    """Return what docker printed.

    Raises:
        UserError: it failed; with what that means.
    """
    if answer.code == 0:
        return answer.output
    if answer.code == MISSING:
        raise UserError(
            f"cannot {doing}: there is no docker on this machine",
            hint="apt-get install docker.io, or https://docs.docker.com/engine/install",
        )
    trouble = docker_trouble(answer.errors)
    raise UserError(f"cannot {doing}: {trouble.message}", hint=trouble.hint)


def require_engine(doing: str) -> str:
    """Return the version of the engine that answers.

    Raises:
        UserError: none does, or it does not let us in.
    """
    return require(ask("version", "--format", "{{.Server.Version}}"), doing).strip()


def require_builder() -> Engine:
    """Return what builds here.

    Raises:
        UserError: no engine answers, or its client cannot build with BuildKit.
    """
    server = require_engine("build")
    client = require(ask("version", "--format", "{{.Client.Version}}"), "build").strip()
    buildx = ask("buildx", "version").code == 0
    if not buildx and _major(client) >= _NEEDS_BUILDX:
        raise UserError(
            f"cannot build: docker {client} needs its plugin buildx for BuildKit, and has none",
            hint="install docker-buildx-plugin (Docker's packages) or docker-buildx (Debian 13, "
            "Ubuntu); without root, put the program docker-buildx into ~/.docker/cli-plugins",
        )
    driver = _driver() if buildx else "docker"
    return Engine(client=client, server=server, buildx=buildx, driver=driver)


def inspect(*images: str) -> tuple[Present | None, ...]:
    """Return what the engine has of these names, None where it has nothing.

    Raises:
        UserError: no engine answers.
    """
    return tuple(_inspect(image) for image in images)


def labelled(label: str) -> tuple[Present, ...]:
    """Return every image with a label, the newest first.

    Raises:
        UserError: no engine answers.
    """
    words = ("image", "ls", "--quiet", "--no-trunc", "--filter", f"label={label}")
    found = dict.fromkeys(require(ask(*words), "list images").split())
    return tuple(image for name in found if (image := _inspect(name)) is not None)


def _inspect(image: str) -> Present | None:
    answer = ask("image", "inspect", image)
    if answer.code and "no such image" in answer.errors.lower():
        return None
    found: dict[str, Any] = json.loads(require(answer, f"look at {image}"))[0]
    return Present(
        id=found["Id"],
        tags=tuple(found.get("RepoTags") or ()),
        labels=found["Config"].get("Labels") or {},
        size_bytes=found["Size"],
        repo_digests=tuple(found.get("RepoDigests") or ()),
        created=found["Created"],
    )


def _driver() -> str:
    said = ask("buildx", "inspect").output
    found = re.search(r"^Driver:\s*(\S+)", said, re.MULTILINE)
    return found.group(1) if found else "docker"


def _major(version: str) -> int:
    found = re.match(r"\d+", version)
    return int(found.group()) if found else 0
