"""What a Docker client says when it cannot do what it was asked for, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerTrouble:
    """What is wrong, in words that do not depend on the release of Docker."""

    message: str
    hint: str | None = None


_KNOWN = (
    (
        re.compile(r"docker: (command )?not found|docker: No such file"),
        "there is no docker",
        "install Docker there: https://docs.docker.com/engine/install",
    ),
    (
        re.compile(r"docker: Permission denied"),
        "no permission to run docker",
        "look who may: ls -l /usr/bin/docker",
    ),
    (
        re.compile(r"permission denied .{0,300}(Docker daemon|docker API)", re.IGNORECASE),
        "no permission for the Docker daemon",
        "sudo usermod -aG docker USER, and log in again",
    ),
    (
        re.compile(
            r"Cannot connect to the Docker daemon|failed to connect to the docker API"
            r"|Is the docker daemon running",
            re.IGNORECASE,
        ),
        "the Docker daemon does not answer",
        "sudo systemctl start docker; journalctl -u docker tells why it ended",
    ),
    (
        re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE),
        "the disk of Docker is full",
        "make room there (docker system df; docker image prune), or move its data-root",
    ),
)
_PREFIX = re.compile(r"^(Error( response from daemon)?|docker): ", re.IGNORECASE)


def docker_trouble(said: str) -> DockerTrouble:
    """Return what the stderr of a failed docker command means.

    The words are those of releases 20.10 to 28. What is not known is given as it was said, its
    last line that is not blank.
    """
    for pattern, message, hint in _KNOWN:
        if pattern.search(said):
            return DockerTrouble(message=message, hint=hint)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return DockerTrouble(message=_PREFIX.sub("", lines[-1]) if lines else "docker says nothing")
