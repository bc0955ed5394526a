"""What builds targets: `docker build` commands one by one, or one file for `docker buildx bake`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterkit.images.recipe import Target, Wishes

BAKE_FILE = "docker-bake.json"
SCRIPT = "build.sh"


def build_command(target: Target, wishes: Wishes, folder: Path, *, buildx: bool) -> tuple[str, ...]:
    """Return the command that builds one target whose context is in `folder`.

    Without buildx it needs DOCKER_BUILDKIT=1. Proxies are given by name: their values, which may
    hold a password, stay in the environment.
    """
    words = ["docker", "buildx", "build"] if buildx else ["docker", "build"]
    words += ["--progress=plain"]
    words += ["--load"] if buildx else []
    words += [f"--platform={wishes.platform}"] if wishes.platform else []
    words += [f"--network={wishes.network}"] if wishes.network else []
    words += ["--no-cache"] if target.no_cache else []
    words += [f"--secret=id={name},src={path}" for name, path in wishes.secrets.items()]
    words += [f"--build-arg={name}" for name in wishes.proxies]
    words += [f"--build-arg={name}={text}" for name, text in target.arguments.items()]
    words += [f"--label={name}={text}" for name, text in target.labels.items()]
    words += [f"--tag={tag}" for tag in target.tags]
    return (*words, str(folder / target.folder))


def bake_document(targets: Sequence[Target], wishes: Wishes, folder: Path) -> Mapping[str, Any]:
    """Return the bake file: each target, and which of them is built from which.

    Where the builder is no part of the engine, it sees a parent only by these links.
    """
    return {
        "group": {"default": {"targets": [target.folder for target in targets]}},
        "target": {
            target.folder: dict(_bake_target(target, targets, wishes, folder)) for target in targets
        },
    }


def _bake_target(
    target: Target, targets: Sequence[Target], wishes: Wishes, folder: Path
) -> Iterator[tuple[str, Any]]:
    yield "context", str(folder / target.folder)
    below = {other.tags[0]: f"target:{other.folder}" for other in targets}
    if target.parent in below:
        yield "contexts", {target.parent: below[target.parent]}
    yield "args", dict(target.arguments)
    yield "labels", dict(target.labels)
    yield "tags", list(target.tags)
    if wishes.secrets:
        yield "secret", [f"id={name},src={path}" for name, path in wishes.secrets.items()]
    if wishes.platform:
        yield "platforms", [wishes.platform]
    if wishes.network:
        yield "network", wishes.network
    if target.no_cache:
        yield "no-cache", True


def build_script(targets: Sequence[Target], wishes: Wishes) -> str:
    """Return a script that builds the targets from the folders beside it."""
    lines = [
        "#!/bin/sh",
        "# Made by clusterkit images build --output. Each line builds one image, parents first.",
        "set -eu",
        'cd "$(dirname "$0")"',
        "export DOCKER_BUILDKIT=1",
    ]
    lines += [shlex.join(build_command(t, wishes, Path(), buildx=False)) for t in targets]
    return "\n".join((*lines, ""))
