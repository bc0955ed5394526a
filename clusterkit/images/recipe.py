"""From names and wishes to what is built, in order: a value that commands and files derive from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusterkit.core.errors import UserError, choices_hint
from clusterkit.images import names
from clusterkit.images.catalogue import (
    EPOCH,
    IMAGES,
    PLATFORMS,
    ROOT_IMAGE,
    Image,
    Variant,
    lineage,
)
from clusterkit.images.context import Context, assemble

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
"""Build arguments that Docker knows by itself: they are in no image and in no history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
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
    parent: str
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


def make_targets(wanted: Sequence[tuple[Image, Variant]], wishes: Wishes) -> tuple[Target, ...]:
    """Return what is built for the wanted images: those below them too, and those first.

    Raises:
        UserError: an image cannot be built so.
    """
    _check(wishes)
    chosen = {(known.name, variant) for image, variant in wanted for known in lineage(image)}
    named = {(image.name, variant) for image, variant in wanted}
    made: dict[tuple[str, Variant], Target] = {}
    for image in IMAGES.values():
        for variant in Variant:
            if (image.name, variant) in chosen:
                below = made.get((image.parent or "", variant))
                fresh = wishes.no_cache and (image.name, variant) in named
                made[image.name, variant] = _target(image, variant, below, wishes, fresh)
    return tuple(made.values())


def _target(
    image: Image, variant: Variant, below: Target | None, wishes: Wishes, no_cache: bool
) -> Target:
    context = assemble(image, variant)
    own = {"VARIANT": str(variant), "SOURCE_DATE_EPOCH": str(wishes.epoch), **wishes.arguments}
    under = below.recipe if below else wishes.root
    recipe = _digest((context.digest(), json.dumps(own, sort_keys=True), under))
    parent = below.tags[0] if below else wishes.root
    return Target(
        image=image,
        variant=variant,
        context=context,
        recipe=recipe,
        parent=parent,
        tags=names.tags(image, variant, recipe, wishes.registry),
        labels=names.labels(image, variant, recipe, root=wishes.root, epoch=wishes.epoch),
        arguments={"PARENT": parent, **own},
        no_cache=no_cache,
    )


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _check(wishes: Wishes) -> None:
    if wishes.platform is not None and wishes.platform not in PLATFORMS:
        raise UserError(
            f"no lock file holds hashes for {wishes.platform}",
            hint=choices_hint(wishes.platform, PLATFORMS),
        )
    for name, path in wishes.secrets.items():
        if not path.is_file():
            raise UserError(f"the file for the build secret {name!r} is not there: {path}")
