"""What a Docker client says when it cannot do what it was asked for, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core.data import read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerError:
    """What is wrong, in words that do not depend on the release of Docker."""

    message: str
    hint: str | None = None


_KNOWN = tuple(
    (re.compile(row["pattern"]), DockerError(message=row["message"], hint=row["hint"]))
    for row in read_table(Path(__file__).with_name("docker_errors.tsv"))
)
_PREFIX = re.compile(r"^(Error( response from daemon)?|docker): ", re.IGNORECASE)


def docker_error(output: str) -> DockerError:
    """Return what the stderr of a failed docker command means.

    What `docker_errors.tsv` does not know is given as it was said, its last line that is not blank.
    """
    for pattern, known in _KNOWN:
        if pattern.search(output):
            return known
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return DockerError(message=_PREFIX.sub("", lines[-1]) if lines else "docker says nothing")
