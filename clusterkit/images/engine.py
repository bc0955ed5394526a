"""The Docker client and engine of this machine: what they can do, or in words what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusterkit.core.commands import MISSING, Answer, run_command
from clusterkit.core.data import read_table
from clusterkit.core.errors import Problem, UserError

_KNOWN = tuple(
    (re.compile(row["pattern"]), Problem(message=row["message"], hint=row["hint"]))
    for row in read_table(__file__, "docker_errors.tsv")
)
_PREFIX = re.compile(r"^(Error( response from daemon)?|docker): ", re.IGNORECASE)


def docker_error(output: str) -> Problem:
    """Return what the stderr of a failed docker command means, whatever the release of Docker.

    What `docker_errors.tsv` does not know is given as it was said, its last line that is not blank.
    """
    for pattern, known in _KNOWN:
        if pattern.search(output):
            return known
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return Problem(message=_PREFIX.sub("", lines[-1]) if lines else "docker says nothing")


_ASK_S = 30.0
_NEEDS_BUILDX = 23
"""First release of the client that builds with BuildKit only through its plugin buildx."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """An image that the engine has."""

    id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    size_bytes: int
    created: str


def ask(*arguments: str, timeout_s: float = _ASK_S) -> Answer:
    """Run `docker` with these arguments."""
    return run_command(("docker", *arguments), timeout_s=timeout_s)


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
    error = docker_error(answer.errors)
    raise UserError(f"cannot {doing}: {error.message}", hint=error.hint)


def require_engine(doing: str) -> str:
    """Return the version of the engine that answers.

    Raises:
        UserError: none does, or it does not let us in.
    """
    return require(ask("version", "--format", "{{.Server.Version}}"), doing).strip()


def require_builder() -> None:
    """Refuse to go on where nothing builds.

    Raises:
        UserError: no engine answers, or its client cannot build with BuildKit.
    """
    require_engine("build")
    client = require(ask("version", "--format", "{{.Client.Version}}"), "build").strip()
    release = re.match(r"\d+", client)
    if release and int(release[0]) >= _NEEDS_BUILDX and ask("buildx", "version").code:
        raise UserError(
            f"cannot build: docker {client} needs its plugin buildx for BuildKit, and has none",
            hint="install docker-buildx-plugin (Docker's packages) or docker-buildx (Debian 13, "
            "Ubuntu); without root, put the program docker-buildx into ~/.docker/cli-plugins",
        )


def labelled(label: str) -> tuple[Present, ...]:
    """Return every image with a label, the newest first.

    Raises:
        UserError: no engine answers.
    """
    arguments = ("image", "ls", "--quiet", "--no-trunc", "--filter", f"label={label}")
    found = dict.fromkeys(require(ask(*arguments), "list images").split())
    return tuple(image for name in found if (image := inspect(name)) is not None)


def inspect(image: str) -> Present | None:
    """Return what the engine has of this name; None where it has nothing.

    Raises:
        UserError: no engine answers.
    """
    answer = ask("image", "inspect", image)
    if answer.code and "no such image" in answer.errors.lower():
        return None
    found: dict[str, Any] = json.loads(require(answer, f"look at {image}"))[0]
    return Present(
        id=found["Id"],
        tags=tuple(found.get("RepoTags") or ()),
        labels=found["Config"].get("Labels") or {},
        size_bytes=found["Size"],
        created=found["Created"],
    )
