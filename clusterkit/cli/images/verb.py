"""`clusterkit images`: build the images that jobs run in, prove them, and keep them in order."""

from __future__ import annotations

import json as jsonlib
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained, group
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.cli.images.build import build, prove_images
from clusterkit.cli.images.distribute import distribute
from clusterkit.core import files
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.records import picked
from clusterkit.core.text import size_in_words
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
from clusterkit.images.keep import Form, default_path, remove, superseded
from clusterkit.images.keep import export as write
from clusterkit.images.locks import (
    lock_command,
    lock_path,
    read_lock,
    render_lock,
    resolve,
    versions,
)

app = group("Build the images that jobs run in, prove them, and keep them in order.")
_COLOURS = {"built": "green", "older": "yellow", "not built": "white", "no lock": "white"}
_COLOURS["unknown"] = "yellow"


@app.command("list")
@explained
def list_images(variant: str | None = None, registry: str = "", json: JsonFlag = False) -> None:
    """List the images, and which of them are built here."""
    chosen = VARIANTS if variant is None else (find_variant(variant),)
    pairs = [(image, k) for image in IMAGES.values() for k in chosen if k in image.variants]
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
            size = size_in_words(row["size_bytes"]) if row["size_bytes"] else ""
            state = console.coloured(f"{row['state']:<9}", _COLOURS[row["state"]])
            line = f"  {row['tag']:<{widths[0]}}  {row['version']:<{widths[1]}}  {state}  {size:>7}"
            console.say(line.rstrip())
    if unknown:
        console.warn(unknown)


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
        **picked(image, "name", "version", "parent", "summary"),
        "variant": str(variant),
        "tag": tag,
        "state": state,
        "digest": present.id if present else None,
        "size_bytes": present.size_bytes if present else None,
    }


@app.command()
@explained
def show(
    name: str,
    variant: str | None = None,
    registry: str = "",
    sbom: Path | None = None,
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
        console.say(f"no lock file: {lock_command(lock_path(image, variant))}")
        return
    if present is None or inside is None:
        console.say(f"not seen in an engine here: clusterkit images build {image.name}:{variant}")
        return
    console.say(f"digest    {present.id}")
    console.say(f"size      {size_in_words(present.size_bytes)}")
    console.say(f"system    {inside.system}, Python {inside.python}, user {inside.user}")
    gpu = f", CUDA {inside.torch_cuda}" if inside.torch_cuda else ""
    if inside.torch:
        console.say(f"torch     {inside.torch}{gpu}")
    counts = f"{len(inside.python_packages)} of Python, {len(inside.debian_packages)} of Debian"
    console.say(f"packages  {counts} (--json lists them)")


app.command()(build)
app.command("test")(prove_images)


@app.command()
@explained
def lock(
    names: list[str] | None = None,
    variant: str | None = None,
    platform: str | None = None,
    pip_conf: Path | None = None,
    json: JsonFlag = False,
) -> None:
    """Choose the version of every Python package anew, and write the lock files.

    pip's own settings on this machine do not count: only --pip-conf does.
    """
    if names:
        pairs = [read_name(word, variant) for word in names]
    else:
        every = find_variant(variant or Variant.CUDA)
        pairs = [(image, every) for image in IMAGES.values() if every in image.variants]
    rows = []
    for image, kind in sorted(pairs, key=lambda pair: list(IMAGES).index(pair[0].name)):
        path = lock_path(image, kind, platform)
        before = read_lock(path) if path.exists() else {}
        pins = resolve(image, kind, platform, pip_conf)
        files.create_output_folder(path.parent)
        files.write_text(path, render_lock(path, pins), mode=files.output())
        after = {pin.name: pin.version for pin in pins}
        changed = {
            name: [before.get(name), after.get(name)]
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        }
        rows.append({"name": image.name, "variant": kind, "path": path, "changed": changed})
        if not json:
            console.say(f"{image.name}:{kind}  {len(pins)} packages, {len(changed)} changed")
            for name, (old, new) in changed.items():
                console.say(f"  {name}  {old or '-'} -> {new or '-'}")
    if json:
        console.json_document({"locks": rows})


@app.command()
@explained
def prune(everything: bool = False, dry_run: bool = False, json: JsonFlag = False) -> None:
    """Remove images of older builds from the engine; what containers use stays."""
    gone = remove(superseded(everything=everything), dry_run=dry_run)
    if json:
        console.json_document({"removed": gone, "dry_run": dry_run})
    else:
        for image in gone:
            name = image.tags[0] if image.tags else image.id[:19]
            why = f"  stays: {image.refused}" if image.refused else ""
            console.say(f"{name}  {size_in_words(image.size_bytes)}{why}")
        verb = "would go" if dry_run else "gone"
        console.say(f"{sum(image.refused is None for image in gone)} {verb}")
        if gone and not dry_run:
            console.note("the cache of builds is kept: docker builder prune")
    if any(image.refused for image in gone):
        raise typer.Exit(EXIT_FINDINGS)


@app.command()
@explained
def export(
    name: str,
    to: str,
    variant: str | None = None,
    registry: str = "",
    output: Path | None = None,
    force: bool = False,
    json: JsonFlag = False,
) -> None:
    """Write an image into a file that Docker, enroot or Apptainer starts."""
    if to not in Form.__members__.values():
        raise UserError(f"nothing is exported to {to!r}", hint=choices_hint(to, map(str, Form)))
    form = Form(to)
    image, kind = read_name(name, variant)
    path = output or default_path(image.name, kind, form)
    tag = tag_of(image, kind, registry)
    size, sha256 = write(tag, form, path, force=force)
    if json:
        about = {"tag": tag, "to": form, "path": path, "size_bytes": size, "sha256": sha256}
        console.json_document(about)
    else:
        console.say(f"{path}  {size_in_words(size)}  sha256:{sha256}")


app.command()(distribute)
