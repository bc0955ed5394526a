"""How images are called, and what their labels say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from clusterkit.core.distribution import normal_name
from clusterkit.core.errors import UserError
from clusterkit.core.version import __version__
from clusterkit.images.catalogue import (
    MATRIX,
    Image,
    Variant,
    find_image,
    find_variant,
    lineage,
)
from clusterkit.images.locks import lock_path, read_lock

LABEL_IMAGE = "io.clusterkit.image"
LABEL_VARIANT = "io.clusterkit.variant"
LABEL_RECIPE = "io.clusterkit.recipe"
LABEL_VERSION = "io.clusterkit.version."
"""Before the name of a package whose version it says."""

_GPU_PACKAGES: Mapping[str, str] = {"cuda": "nvidia-cuda-runtime", "nccl": "nvidia-nccl-cu13"}
_REGISTRY = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")


def repository(image: Image, registry: str = "") -> str:
    """Return the name of an image without its tag."""
    return f"{registry}/clusterkit/{image.name}" if registry else f"clusterkit/{image.name}"


def tag_of(image: Image, variant: Variant, registry: str = "") -> str:
    """Return the name by which jobs, children and people call an image."""
    return f"{repository(image, registry)}:{variant}"


def recipe_tag(image: Image, variant: Variant, recipe: str, registry: str = "") -> str:
    """Return the name that moves on to no other content: with the hash of its recipe."""
    return f"{repository(image, registry)}:{variant}-{recipe[:12]}"


def tags(image: Image, variant: Variant, recipe: str, registry: str = "") -> tuple[str, ...]:
    """Return all names of an image, the one that is used first."""
    return (
        tag_of(image, variant, registry),
        f"{repository(image, registry)}:{version(image)}-{variant}",
        recipe_tag(image, variant, recipe, registry),
    )


def version(image: Image) -> str:
    """Return the version that an image is called by."""
    return __version__ if image.version_of == "clusterkit" else MATRIX[image.version_of]


def versions(image: Image, variant: Variant) -> Mapping[str, str]:
    """Return the versions inside of what MATRIX names, as far as the image holds it."""
    locked: dict[str, str] = {}
    for known in lineage(image):
        if lock_path(known, variant).exists():
            locked |= read_lock(lock_path(known, variant))
    built = {name for known in lineage(image) for name in map(_name_of, known.sources)}
    found = {"clusterkit": __version__, "python": MATRIX["python"]}
    for name in MATRIX:
        package = normal_name(_GPU_PACKAGES.get(name, name))
        if package in locked:
            found[name] = locked[package]
        elif name in built:
            found[name] = MATRIX[name]
    return found


def labels(image: Image, variant: Variant, recipe: str, *, root: str, epoch: int) -> dict[str, str]:
    """Return the labels of an image: OCI's own (image-spec, annotations.md) and ours."""
    oci = {
        "title": f"clusterkit {image.name} ({variant})",
        "description": image.summary,
        "version": version(image),
        "created": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "licenses": "Apache-2.0",
        "base.name": root.partition("@")[0],
        "base.digest": root.partition("@")[2],
    }
    ours = {
        LABEL_IMAGE: image.name,
        LABEL_VARIANT: str(variant),
        LABEL_RECIPE: recipe,
        **{LABEL_VERSION + name: text for name, text in versions(image, variant).items()},
    }
    return {f"org.opencontainers.image.{key}": text for key, text in oci.items() if text} | ours


def read_name(
    word: str, variant: str | None, default: Variant = Variant.CUDA
) -> tuple[Image, Variant]:
    """Read `NAME:VARIANT`, or `NAME` with a variant that was given apart, perhaps long ago.

    Raises:
        UserError: unknown names.
    """
    name, colon, behind = word.removeprefix("clusterkit/").partition(":")
    return find_image(name), find_variant(behind) if colon else find_variant(variant or default)


def check_registry(text: str) -> str:
    """Return a registry with what stands before the images' names in it, if it can be one.

    Raises:
        UserError: it has another form, such as a URL.
    """
    if _REGISTRY.fullmatch(text):
        return text
    raise UserError(
        f"{text!r} is no registry", hint="HOST[:PORT][/PATH], in lower case, without https://"
    )


def _name_of(requirement: str) -> str:
    return requirement.partition("==")[0]
