"""Which version is in which image, from the catalogue and its lock files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clusterkit.images.catalogue import IMAGES, MATRIX, PLATFORMS, ROOT_IMAGE, VARIANTS
from clusterkit.images.locks import lock_path, versions
from docs.generate.page import Page, blocks, code, prose, table


def pages(root: Path) -> Iterator[Page]:
    """Yield the one page of this module."""
    del root
    locked = [variant for variant in VARIANTS if lock_path(IMAGES["base"], variant).exists()]
    parts = []
    for variant in locked:
        found = {
            name: versions(image, variant)
            for name, image in IMAGES.items()
            if variant in image.variants
        }
        rows = (
            (code(part), *(inside.get(part, "") for inside in found.values()))
            for part in ("clusterkit", *MATRIX)
        )
        parts += [f"## {variant}", table(("", *map(code, found)), rows)]
    yield Page(
        path="reference/image-versions.md",
        text=blocks(
            "# Images and versions",
            "From the catalogue and the lock files, which pin everything else by hash. [What "
            "images are](../images.md), and [how to build them](../how-to/images.md).",
            table(
                ("image", "built on", "tag", "what for"),
                (
                    (
                        code(name),
                        code(image.parent or "Debian 12"),
                        code(image.version),
                        prose(image.summary),
                    )
                    for name, image in IMAGES.items()
                ),
            ),
            *parts,
            f"Platforms: {', '.join(map(code, PLATFORMS))}. The root image: {code(ROOT_IMAGE)}.",
            "Variants without a lock file are not built: "
            + (", ".join(code(v) for v in VARIANTS if v not in locked) or "none")
            + ".",
        ),
    )
