"""What is built, in order: contexts, tags and labels, and the commands that derive from them."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clusterkit.core import files
from clusterkit.core.data import data_dir
from clusterkit.core.errors import UserError
from clusterkit.images.catalogue import (
    EPOCH,
    IMAGES,
    LABEL_IMAGE,
    LABEL_RECIPE,
    LABEL_VARIANT,
    LABEL_VERSION,
    ROOT_IMAGE,
    Image,
    Variant,
    lineage,
    tags,
)
from clusterkit.images.locks import SOURCE, find_platform, lock_command, lock_path, versions
from clusterkit.transport.sync.wheel import WHEEL_NAME, pack_wheel

BAKE_FILE = "docker-bake.json"
SCRIPT = "build.sh"
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
"""Build arguments that Docker knows by itself: they are in no image and in no history."""
_NOT_SENT = frozenset({"lock", "README.md"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The files of a build by their names in it, and which of them are programs."""

    files: Mapping[str, bytes]
    programs: frozenset[str]

    def digest(self) -> str:
        """Return the SHA-256 of names, contents and modes."""
        whole = hashlib.sha256()
        for name, data in sorted(self.files.items()):
            mode = "x" if name in self.programs else "-"
            whole.update(f"{name}\0{mode}\0{hashlib.sha256(data).hexdigest()}\n".encode())
        return whole.hexdigest()

    def write(self, folder: Path) -> None:
        """Write the files into a folder that is made, as readable as they are in images."""
        for name, data in self.files.items():
            path = folder / name
            files.create_folder(path.parent, mode=files.PUBLIC_PROGRAM)
            mode = files.PUBLIC_PROGRAM if name in self.programs else files.PUBLIC
            files.write_bytes(path, data, mode=mode)


def assemble(image: Image, variant: Variant, platform: str | None = None) -> Context:
    """Return what the build of an image sees; without a platform, that on this machine.

    Raises:
        UserError: the variant has no lock file there, or there is no Dockerfile.
    """
    there = data_dir("images")
    folder, lock = there / image.name, lock_path(image, variant, platform)
    found = {
        str(path.relative_to(folder)): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.relative_to(folder).parts[0] not in _NOT_SENT
        and "__pycache__" not in path.parts
    }
    found |= {Path(name).name: there / name for name in image.borrowed}
    if not lock.exists():
        missing = f"{image.name} has no lock file for {variant} on {find_platform(platform)}"
        raise UserError(
            f"{missing}, so nothing says what to install",
            hint=f"{lock_command(lock)} --pip-conf FILE",
        )
    found["requirements.txt"] = lock
    if image.sources:
        found["source.txt"] = lock_path(image, SOURCE)
    if "Dockerfile" not in found:
        raise UserError(f"there is no Dockerfile of {image.name} in {there}")
    programs = frozenset(name for name, path in found.items() if path.stat().st_mode & 0o100)
    contents = {name: path.read_bytes() for name, path in found.items()}
    if image.parent is None:
        contents[WHEEL_NAME] = pack_wheel()
    return Context(files=contents, programs=programs)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What a build is asked for beside the names of the images."""

    root: str = ROOT_IMAGE
    """What `base` is built from."""
    registry: str = ""
    platform: str | None = None
    network: str | None = None
    """Network of the steps that download: `host`, where containers have none of their own."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    no_cache: bool = False
    """Of the images that were named; those below them are taken from the cache."""
    secrets: Mapping[str, Path] = field(default_factory=dict)
    """Files that steps see and images do not: `ca`, `pip`, `apt`."""
    proxies: tuple[str, ...] = ()
    """Names of the proxy variables to hand on; their values are in the environment."""
    epoch: int = EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One image that is built, with everything that its build is told."""

    image: Image
    variant: Variant
    context: Context
    recipe: str
    """SHA-256 of all that decides what is inside: files, arguments, and the recipe below."""
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    arguments: Mapping[str, str]
    no_cache: bool

    @property
    def name(self) -> str:
        """Name it in messages: `torch:cpu`."""
        return f"{self.image.name}:{self.variant}"

    @property
    def folder(self) -> str:
        """Name its context and its target of the bake file."""
        return f"{self.image.name}-{self.variant}"


def make_targets(
    requested: Sequence[tuple[Image, Variant]], options: BuildOptions
) -> tuple[Target, ...]:
    """Return what is built for the wanted images: those below them too, and those first.

    Raises:
        UserError: an image cannot be built so.
    """
    for name, path in options.secrets.items():
        if not path.is_file():
            raise UserError(f"the file for the build secret {name!r} is missing: {path}")
    chosen = {(known.name, variant) for image, variant in requested for known in lineage(image)}
    named = {(image.name, variant) for image, variant in requested}
    made: dict[tuple[str, Variant], Target] = {}
    for image in IMAGES.values():
        for variant in Variant:
            if (image.name, variant) in chosen:
                below = made.get((image.parent or "", variant))
                fresh = options.no_cache and (image.name, variant) in named
                made[image.name, variant] = _target(image, variant, below, options, fresh)
    return tuple(made.values())


def _target(
    image: Image, variant: Variant, below: Target | None, options: BuildOptions, no_cache: bool
) -> Target:
    context = assemble(image, variant, options.platform)
    own = {"VARIANT": str(variant), "SOURCE_DATE_EPOCH": str(options.epoch), **options.arguments}
    under = below.recipe if below else options.root
    parts = (context.digest(), json.dumps(own, sort_keys=True), under)
    recipe = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return Target(
        image=image,
        variant=variant,
        context=context,
        recipe=recipe,
        tags=tags(image, variant, recipe, options.registry),
        labels=_labels(image, variant, recipe, options),
        arguments={"PARENT": below.tags[0] if below else options.root, **own},
        no_cache=no_cache,
    )


def _labels(image: Image, variant: Variant, recipe: str, options: BuildOptions) -> dict[str, str]:
    """Return the labels of an image: OCI's own (image-spec, annotations.md) and ours."""
    name, _, digest = options.root.partition("@")
    oci = {
        "title": f"clusterkit {image.name} ({variant})",
        "description": image.summary,
        "version": image.version,
        "created": datetime.fromtimestamp(options.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "licenses": "Apache-2.0",
        "base.name": name,
        "base.digest": digest,
    }
    ours = {LABEL_IMAGE: image.name, LABEL_VARIANT: str(variant), LABEL_RECIPE: recipe}
    inside = versions(image, variant, options.platform)
    ours |= {LABEL_VERSION + name: text for name, text in inside.items()}
    return {f"org.opencontainers.image.{key}": text for key, text in oci.items() if text} | ours


def build_command(target: Target, options: BuildOptions, folder: Path) -> tuple[str, ...]:
    """Return the command that builds one target whose context is in `folder`.

    It needs DOCKER_BUILDKIT=1 up to Docker 22. Proxies are given by name: their values, which may
    hold a password, stay in the environment.
    """
    command = ["docker", "build", "--progress=plain"]
    command += [f"--platform={options.platform}"] if options.platform else []
    command += [f"--network={options.network}"] if options.network else []
    command += ["--no-cache"] if target.no_cache else []
    command += [f"--secret=id={name},src={path}" for name, path in options.secrets.items()]
    command += [f"--build-arg={name}" for name in options.proxies]
    command += [f"--build-arg={name}={text}" for name, text in target.arguments.items()]
    command += [f"--label={name}={text}" for name, text in target.labels.items()]
    command += [f"--tag={tag}" for tag in target.tags]
    return (*command, str(folder / target.folder))


def bake_document(targets: Sequence[Target], options: BuildOptions) -> Mapping[str, Any]:
    """Return the bake file: each target, and which of them is built from which.

    Where the builder is not a part of the engine, it sees a parent only by these links.
    """
    folders = {target.tags[0]: target.folder for target in targets}
    entries = {}
    for target in targets:
        parent = target.arguments["PARENT"]
        entry = {
            "context": target.folder,
            "contexts": {parent: f"target:{folders[parent]}"} if parent in folders else None,
            "args": dict(target.arguments),
            "labels": dict(target.labels),
            "tags": list(target.tags),
            "secret": [f"id={name},src={path}" for name, path in options.secrets.items()],
            "platforms": [options.platform] if options.platform else None,
            "network": options.network,
            "no-cache": target.no_cache,
        }
        entries[target.folder] = {key: value for key, value in entry.items() if value}
    return {"group": {"default": {"targets": list(entries)}}, "target": entries}


def build_script(targets: Sequence[Target], options: BuildOptions) -> str:
    """Return a script that builds the targets from the folders beside it."""
    lines = [
        "#!/bin/sh",
        "# Made by clusterkit images build --output. Each line builds one image, parents first.",
        "set -eu",
        'cd "$(dirname "$0")"',
        "export DOCKER_BUILDKIT=1",
    ]
    lines += [shlex.join(build_command(t, options, Path())) for t in targets]
    return "\n".join((*lines, ""))


def write_folder(targets: Sequence[Target], options: BuildOptions, folder: Path) -> None:
    """Write everything that a build needs: contexts, a bake file, a script of plain commands."""
    files.create_output_folder(folder)
    for target in targets:
        target.context.write(folder / target.folder)
    bake = json.dumps(bake_document(targets, options), indent=2) + "\n"
    files.write_text(folder / BAKE_FILE, bake, mode=files.output())
    program = files.output(files.PUBLIC_PROGRAM)
    files.write_text(folder / SCRIPT, build_script(targets, options), mode=program)
