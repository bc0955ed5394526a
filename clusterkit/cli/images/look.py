"""`clusterkit images list` and `clusterkit images show`."""

from __future__ import annotations

import json as jsonlib
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, option
from clusterkit.cli.images.flags import Name, Registry, VariantFlag, size_words
from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.images import engine
from clusterkit.images.catalogue import (
    IMAGES,
    LABEL_VERSION,
    VARIANTS,
    Image,
    Variant,
    find_variant,
    lineage,
    read_name,
    tag_of,
)
from clusterkit.images.engine import Present
from clusterkit.images.inside import Manifest, bill_of_materials, read_manifest
from clusterkit.images.locks import lock_command, lock_path, versions


def list_images(
    variant: VariantFlag = None, registry: Registry = "", json: JsonFlag = False
) -> None:
    """List the images, and which of them are built here."""
    chosen = VARIANTS if variant is None else (find_variant(variant),)
    pairs = [(image, kind) for image in IMAGES.values() for kind in chosen]
    there: dict[str, Present | None] = {}
    unknown = None
    try:
        engine.require_engine("look for images")
    except UserError as error:
        unknown = str(error)
    else:
        tags = [tag_of(image, kind, registry) for image, kind in pairs]
        there = {tag: engine.inspect(tag) for tag in tags}
    rows = [_row(image, kind, registry, there, known=unknown is None) for image, kind in pairs]
    if json:
        console.json_document({"images": rows, "engine": unknown or "answers"})
        return
    widths = [max(len(row[key]) for row in rows) for key in ("tag", "version")]
    for image, here in groupby(rows, key=itemgetter("name")):
        console.say(f"{console.bold(image)}: {IMAGES[image].summary}")
        for row in here:
            size = size_words(row["size_bytes"]) if row["size_bytes"] else ""
            state = console.coloured(f"{row['state']:<9}", _COLOURS[row["state"]])
            line = f"  {row['tag']:<{widths[0]}}  {row['version']:<{widths[1]}}  {state}  {size:>7}"
            console.say(line.rstrip())
    if unknown:
        console.warn(unknown)


_COLOURS = {"built": "green", "older": "yellow", "not built": "white", "no lock": "white"}
_COLOURS["unknown"] = "yellow"


def _row(
    image: Image,
    variant: Variant,
    registry: str,
    there: dict[str, Present | None],
    *,
    known: bool,
) -> dict[str, Any]:
    tag = tag_of(image, variant, registry)
    present = there.get(tag)
    state = "not built" if known else "unknown"
    if not lock_path(image, variant).exists():
        state = "no lock"
    if present is not None:
        ours = versions(image, variant)
        same = all(present.labels.get(LABEL_VERSION + name) == ours[name] for name in ours)
        state = "built" if same else "older"
    return {
        "name": image.name,
        "variant": str(variant),
        "tag": tag,
        "version": image.version,
        "parent": image.parent,
        "summary": image.summary,
        "state": state,
        "digest": present.id if present else None,
        "size_bytes": present.size_bytes if present else None,
    }


def show(
    name: Name,
    variant: VariantFlag = None,
    registry: Registry = "",
    sbom: Annotated[
        Path | None,
        option(
            "--sbom", "Write all packages of the built image here (CycloneDX 1.5, JSON).", "FILE"
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show what an image is made of, and what is inside the one that is built here."""
    image, kind = read_name(name, variant)
    tag = tag_of(image, kind, registry)
    present = None
    try:
        present = engine.inspect(tag)
    except UserError as error:
        if sbom is not None:
            raise
        console.warn(str(error))
    if present is None and sbom is not None:
        raise UserError(
            f"{tag} is not built here", hint=f"clusterkit images build {image.name}:{kind}"
        )
    inside = read_manifest(tag) if present is not None else None
    if sbom is not None and inside is not None and present is not None:
        bill = bill_of_materials(tag, present, inside)
        files.write_text(sbom, jsonlib.dumps(bill, indent=2) + "\n", mode=files.output())
    if json:
        console.json_document(_document(image, kind, tag, present, inside))
    else:
        _print(image, kind, tag, present, inside)
        if sbom is not None:
            console.say(f"sbom      {sbom}")


def _document(
    image: Image, variant: Variant, tag: str, present: Present | None, inside: Manifest | None
) -> dict[str, Any]:
    return {
        "name": image.name,
        "variant": variant,
        "tag": tag,
        "version": image.version,
        "summary": image.summary,
        "lineage": [known.name for known in lineage(image)],
        "versions": versions(image, variant),
        "built": present,
        "inside": inside,
    }


def _print(
    image: Image, variant: Variant, tag: str, present: Present | None, inside: Manifest | None
) -> None:
    console.say(f"{console.bold(tag)}  {image.summary}")
    console.say(f"built on  {' < '.join(known.name for known in lineage(image))}")
    listed = ", ".join(f"{name} {text}" for name, text in versions(image, variant).items())
    console.say(f"versions  {listed}")
    if present is None and not lock_path(image, variant).exists():
        console.say(f"no lock file: {lock_command(image.name, variant)}")
        return
    if present is None or inside is None:
        console.say(f"not seen in an engine here: clusterkit images build {image.name}:{variant}")
        return
    console.say(f"digest    {present.id}")
    console.say(f"size      {size_words(present.size_bytes)}")
    console.say(f"system    {inside.system}, Python {inside.python}, user {inside.user}")
    gpu = f", CUDA {inside.torch_cuda}" if inside.torch_cuda else ""
    if inside.torch:
        console.say(f"torch     {inside.torch}{gpu}")
    counts = f"{len(inside.python_packages)} of Python, {len(inside.debian_packages)} of Debian"
    console.say(f"packages  {counts} (--json lists them)")
