"""A Docker image of this machine, and the archive that `docker save` makes of it.

The archive is a tar file with `manifest.json`, which names the layers in their order, in the form
of Docker up to 24 and in that of 25 and later (an OCI layout) alike. An engine that has the lower
layers of an image does not read them from the archive, so they need not be sent.
"""

from __future__ import annotations

import json
import posixpath
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path

from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.untrusted import whole
from clusterkit.images import engine
from clusterkit.images.engine import docker_error

LAYERS = "{{range .RootFS.Layers}}{{.}},{{end}}"
INSPECT = "{{.Id}} {{.Created}} {{.Architecture}} {{.Size}} " + LAYERS
"""The `--format` of `docker image inspect` that `read_image` reads."""
_SAVE_WITHIN_S = 7200.0
_ROOM = 16 << 20

Range = tuple[int, int]
"""Where bytes begin in a file, and where they end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """What an engine says of an image."""

    digest: str
    """`sha256:` and 64 digits."""
    created: str
    architecture: str
    size: int
    """Bytes, unpacked."""
    layers: tuple[str, ...]
    """Digests of the unpacked layers, the lowest first."""

    def is_same(self, other: ImageFacts) -> bool:
        """Tell whether this is the same build.

        An engine that keeps images in containerd names them by another digest than one that does
        not; then what is inside has to tell.
        """
        mine, others = (self.created, self.layers), (other.created, other.layers)
        return self.digest == other.digest or (bool(self.layers) and mine == others)


def read_image(line: str) -> ImageFacts:
    """Read a line of `INSPECT`.

    Raises:
        ValueError: it is none.
    """
    digest, created, architecture, size, layers = line.split(" ")
    return ImageFacts(
        digest=digest,
        created=created,
        architecture=architecture,
        size=whole(size),
        layers=read_layers(layers),
    )


def read_layers(text: str) -> tuple[str, ...]:
    """Read what `LAYERS` gives."""
    return tuple(layer for layer in text.split(",") if layer)


def find_image(reference: str, *, hint: str | None = None) -> ImageFacts:
    """Return what the engine of this machine says of an image; `hint` says how to get it.

    Raises:
        UserError: it has none of that name, or that name would be lost on the way.
        RemoteError: there is no engine, or it does not let us.
    """
    if "@" in reference:
        raise UserError(
            f"{reference}: a digest of a registry is lost when an image is saved",
            hint="give the image a tag: docker tag; and name that",
        )
    answer = engine.ask("image", "inspect", "--format", INSPECT, reference)
    if answer.code == 0:
        return read_image(answer.output.strip())
    if "no such image" in answer.errors.lower():
        raise UserError(
            f"the Docker of this machine has no image {reference}",
            hint=hint or f"docker pull {reference}, or see what there is: docker image ls",
        )
    raise _failed(answer.errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A saved image."""

    path: Path
    size: int
    layers: tuple[tuple[Range, ...], ...]
    """Where each layer is, in the order of the image. One that a layer above it uses as well (they
    are equal) counts as a part of the uppermost."""

    def without(self, lowest: int) -> tuple[Range, ...]:
        """Return what of the file is sent to an engine that has the `lowest` layers."""
        left_out = sorted(one for layer in self.layers[:lowest] for one in layer)
        edges = (0, *(edge for one in left_out for edge in one), self.size)
        return tuple(one for one in zip(edges[::2], edges[1::2], strict=True) if one[0] < one[1])


def save_image(reference: str, image: ImageFacts, folder: Path) -> Archive:
    """Save an image to a file in `folder`.

    Raises:
        UserError: there is no room for it.
        RemoteError: Docker cannot; in its words.
    """
    free = shutil.disk_usage(folder).free
    needed = image.size + _ROOM
    if free < needed:
        raise UserError(
            f"{needed >> 20} MiB are needed in {folder.parent} to save {reference}, "
            f"and {free >> 20} MiB are free",
            hint="name a larger disk: TMPDIR=/PATH clusterkit images distribute ...",
        )
    path = folder / "image.tar"
    answer = engine.ask("save", "--output", str(path), reference, timeout_s=_SAVE_WITHIN_S)
    if answer.code:
        raise _failed(answer.errors)
    return read_archive(path)


def read_archive(path: Path) -> Archive:
    """Find the layers in what `docker save` has written.

    Docker up to 24 writes a layer that it has written already as a link to that.

    Raises:
        RemoteError: this is no such archive.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            members = {member.name: member for member in tar}
            manifest = tar.extractfile(members["manifest.json"]) or BytesIO()
            (image,) = json.load(manifest)
            begins = [member.offset for member in members.values()]
            places = dict(zip(members, pairwise((*begins, tar.offset)), strict=True))
        layers = []
        for name in image["Layers"]:
            parts = {places[name]}
            if members[name].issym():
                linked = posixpath.join(posixpath.dirname(name), members[name].linkname)
                parts.add(places[posixpath.normpath(linked)])
            layers.append(parts)
    except (tarfile.TarError, KeyError, ValueError, TypeError, IndexError) as error:
        raise RemoteError(
            f"docker save has written something else than an image: {error}",
            hint="see what is in it: docker save IMAGE | tar t",
        ) from error
    return Archive(
        path=path,
        size=path.stat().st_size,
        layers=tuple(
            tuple(sorted(layer.difference(*layers[above:])))
            for above, layer in enumerate(layers, start=1)
        ),
    )


def chunks(archive: Archive, ranges: tuple[Range, ...], most: int) -> Iterator[bytes]:
    """Yield these parts of the archive, in pieces of at most so many bytes."""
    with archive.path.open("rb") as stream:
        for begin, end in ranges:
            stream.seek(begin)
            left = end - begin
            while left and (data := stream.read(min(left, most))):
                yield data
                left -= len(data)


def size_of(ranges: tuple[Range, ...]) -> int:
    """Return how many bytes these are."""
    return sum(end - begin for begin, end in ranges)


def _failed(error_output: str) -> RemoteError:
    error = docker_error(error_output)
    return RemoteError(f"{error.message} (on this machine)", hint=error.hint)
