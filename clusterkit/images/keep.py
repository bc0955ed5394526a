"""Take images out of the engine: into a file, or away."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from clusterkit.core import files
from clusterkit.core.commands import run_command
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.images import engine
from clusterkit.images.catalogue import LABEL_IMAGE
from clusterkit.images.engine import Present, docker_error

_RECIPE = re.compile(r".*:[a-z]+-[0-9a-f]{12}")
_EXPORT_S = 7200.0


class Form(StrEnum):
    """What an image is exported to."""

    TAR = "tar"
    ENROOT = "enroot"
    APPTAINER = "apptainer"


_SUFFIX = {Form.TAR: ".tar", Form.ENROOT: ".sqsh", Form.APPTAINER: ".sif"}
_INSTALL = {
    Form.ENROOT: "https://github.com/NVIDIA/enroot/blob/master/doc/installation.md",
    Form.APPTAINER: "https://apptainer.org/docs/admin/main/installation.html",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """An image that went, or why it did not."""

    id: str
    tags: tuple[str, ...]
    size_bytes: int
    refused: str | None


def default_path(name: str, variant: str, form: Form) -> Path:
    """Return what the file is called where nobody says."""
    return Path(f"{name}-{variant}{_SUFFIX[form]}")


def export_command(tag: str, form: Form, path: Path) -> tuple[str, ...]:
    """Return the command that writes an image of the engine into a file."""
    return {
        Form.TAR: ("docker", "save", "--output", str(path), tag),
        Form.ENROOT: ("enroot", "import", "--output", str(path), f"dockerd://{tag}"),
        Form.APPTAINER: ("apptainer", "build", str(path), f"docker-daemon:{tag}"),
    }[form]


def export(tag: str, form: Form, path: Path, *, force: bool) -> tuple[int, str]:
    """Write an image into a file, whole or not at all; return its bytes and their SHA-256.

    Raises:
        UserError: it is missing, a tool is missing, or a file is in the way.
        RemoteError: the tool failed, as on a full disk.
    """
    if form is not Form.TAR and shutil.which(form) is None:
        raise UserError(f"{form} is not installed here", hint=_INSTALL[form])
    if path.exists() and not force:
        raise UserError(f"there is a file {path} already", hint="--force replaces it")
    engine.require_engine("export")
    image_name = tag.rpartition("clusterkit/")[2]
    if engine.inspect(tag) is None:
        raise UserError(f"{tag} is not here", hint=f"clusterkit images build {image_name}")
    files.create_output_folder(path.parent)
    with (
        files.explained(path.parent),
        tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as name,
    ):
        written = Path(name) / path.name
        answer = run_command(export_command(tag, form, written), timeout_s=_EXPORT_S)
        if answer.code or not written.exists():
            error = docker_error(answer.errors or answer.output)
            free = shutil.disk_usage(path.parent).free / 1e9
            raise RemoteError(
                f"{tag} was not written to {path}: {error.message}",
                hint=f"{free:.1f} GB are free in {path.parent.absolute()}",
            )
        size = written.stat().st_size
        with written.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        files.give_name(written, path, mode=files.output())
    return size, digest


def superseded(*, everything: bool) -> tuple[Present, ...]:
    """Return the images of the catalogue that a later build has taken the names of.

    An image that somebody built on one of ours has its labels too, but a name of its own or none.

    Raises:
        UserError: no engine answers.
    """
    ours = [image for image in engine.labelled(LABEL_IMAGE) if _is_ours(image)]
    return tuple(image for image in ours if everything or all(map(_RECIPE.fullmatch, image.tags)))


def remove(images: Sequence[Present], *, dry_run: bool) -> tuple[Removed, ...]:
    """Remove images with all their names, or say what would go.

    What a container or a child needs stays.
    """
    removed = []
    for image in images:
        refused = None
        if not dry_run:
            answer = engine.ask("image", "rm", *(image.tags or (image.id,)), timeout_s=_EXPORT_S)
            refused = docker_error(answer.errors).message if answer.code else None
        size = image.size_bytes
        removed.append(Removed(id=image.id, tags=image.tags, size_bytes=size, refused=refused))
    return tuple(removed)


def _is_ours(image: Present) -> bool:
    name = f"clusterkit/{image.labels[LABEL_IMAGE]}"
    repositories = {tag.rpartition(":")[0] for tag in image.tags}
    return bool(repositories) and all(f"/{each}".endswith(f"/{name}") for each in repositories)
