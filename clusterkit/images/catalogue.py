"""The catalogue of images (images/catalogue.toml): what there is, and how it is called."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from clusterkit.core.data import data_dir
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.version import __version__


class Variant(StrEnum):
    """What the Python packages of an image compute on."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"


VARIANTS: tuple[Variant, ...] = tuple(Variant)
HEALTH = "/opt/clusterkit/health"
"""The command inside that proves that an image works: two ranks train."""
LABEL_IMAGE = "io.clusterkit.image"
LABEL_VARIANT = "io.clusterkit.variant"
LABEL_RECIPE = "io.clusterkit.recipe"
LABEL_VERSION = "io.clusterkit.version."
"""Before the name of a package whose version it says."""
_REGISTRY = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image, in all its variants; images/catalogue.toml says what the fields mean."""

    name: str
    summary: str
    version_of: str
    parent: str | None = None
    packages: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    borrowed: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = VARIANTS

    @property
    def version(self) -> str:
        """Return the version that the image is called by."""
        return __version__ if self.version_of == "clusterkit" else MATRIX[self.version_of]


def _image(name: str, row: Mapping[str, Any]) -> Image:
    pinned = {key: tuple(map(_pinned, row.get(key, ()))) for key in ("packages", "cuda", "sources")}
    variants = tuple(map(Variant, row.get("variants", VARIANTS)))
    others = {"name": name, "borrowed": tuple(row.get("borrowed", ())), "variants": variants}
    return Image(**{**row, **pinned, **others})


def _pinned(requirement: str) -> str:
    """Return a requirement with the version of the matrix, where that names its package."""
    version = MATRIX.get(requirement.partition("[")[0])
    return f"{requirement}=={version}" if version else requirement


_TABLES = tomllib.loads((data_dir("images") / "catalogue.toml").read_text(encoding="utf-8"))
ROOT_IMAGE: str = _TABLES["root_image"]
EPOCH: int = _TABLES["epoch"]
PLATFORMS: tuple[str, ...] = tuple(_TABLES["platforms"])
MATRIX: Mapping[str, str] = _TABLES["matrix"]
IMAGES: Mapping[str, Image] = {name: _image(name, row) for name, row in _TABLES["images"].items()}
"""By name; parents before children."""


def find_image(name: str) -> Image:
    """Return the image of this name.

    Raises:
        UserError: there is none; with the closest name.
    """
    if name not in IMAGES:
        raise UserError(f"no image is called {name!r}", hint=choices_hint(name, IMAGES))
    return IMAGES[name]


def find_variant(name: str) -> Variant:
    """Return the variant of this name.

    Raises:
        UserError: there is none; with the closest name.
    """
    if name not in VARIANTS:
        raise UserError(
            f"no variant is called {name!r}", hint=choices_hint(name, map(str, VARIANTS))
        )
    return Variant(name)


def lineage(image: Image) -> tuple[Image, ...]:
    """Return the image with all below it, the lowest first."""
    return (*(lineage(IMAGES[image.parent]) if image.parent else ()), image)


def read_name(word: str, variant: str | None) -> tuple[Image, Variant]:
    """Read `NAME:VARIANT`, or `NAME` with a variant that was given apart, perhaps long ago.

    Raises:
        UserError: unknown names, or a variant that this image does not have.
    """
    name, colon, behind = word.removeprefix("clusterkit/").partition(":")
    image, found = find_image(name), find_variant(behind if colon else variant or Variant.CUDA)
    if found not in image.variants:
        hint = f"it has {' and '.join(image.variants)}"
        raise UserError(f"the image {name} has no variant {found}", hint=hint)
    return image, found


def tag_of(image: Image, variant: Variant, registry: str = "") -> str:
    """Return the name by which jobs, children and people call an image."""
    return f"{registry}/clusterkit/{image.name}:{variant}".removeprefix("/")


def tags(image: Image, variant: Variant, recipe: str, registry: str = "") -> tuple[str, ...]:
    """Return all names of an image, the one that is used first.

    The last one, with the hash of its recipe, never moves on to another content.
    """
    first = tag_of(image, variant, registry)
    by_version = f"{first.removesuffix(variant)}{image.version}-{variant}"
    return first, by_version, f"{first}-{recipe[:12]}"


def check_registry(text: str) -> str:
    """Return a registry with what stands before the images' names in it, if it can be one.

    Raises:
        UserError: it has another form, such as a URL.
    """
    if not _REGISTRY.fullmatch(text):
        hint = "HOST[:PORT][/PATH], in lower case, without https://"
        raise UserError(f"{text!r} is not a registry", hint=hint)
    return text
