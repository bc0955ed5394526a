"""`clusterkit images`: build the images that jobs run in, prove them, and keep them in order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, option
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.cli.images.build import build, prove_images
from clusterkit.cli.images.distribute import distribute
from clusterkit.cli.images.flags import Name, PipConf, Registry, VariantFlag, size_words
from clusterkit.cli.images.look import list_images, show
from clusterkit.core import files
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.images.catalogue import IMAGES, read_name, tag_of
from clusterkit.images.keep import Form, default_path, removal, remove, superseded
from clusterkit.images.keep import export as write
from clusterkit.images.locks import lock_path, read_lock, render_lock, resolve

app = typer.Typer(
    help="Build the images that jobs run in, prove them, and keep them in order.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def lock(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Images; without any, all.", metavar="[NAME]...", show_default=False),
    ] = None,
    variant: VariantFlag = None,
    pip_conf: PipConf = None,
    json: JsonFlag = False,
) -> None:
    """Choose the version of every Python package anew, and write the lock files.

    pip's own settings on this machine do not count: only --pip-conf does.
    """
    pairs = [read_name(word, variant) for word in names or IMAGES]
    rows = []
    for image, kind in sorted(pairs, key=lambda pair: list(IMAGES).index(pair[0].name)):
        path = lock_path(image, kind)
        before = read_lock(path) if path.exists() else {}
        pins = resolve(image, kind, pip_conf)
        files.create_output_folder(path.parent)
        files.write_text(path, render_lock(image, kind, pins), mode=files.output())
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


def prune(
    everything: Annotated[
        bool, option("--all", "Also those that no later build has replaced.")
    ] = False,
    dry_run: Annotated[bool, option("--dry-run", "Say what would go, and let it be.")] = False,
    json: JsonFlag = False,
) -> None:
    """Remove images of older builds from the engine; what containers use stays."""
    found = superseded(everything=everything)
    gone = tuple(map(removal, found)) if dry_run else remove(found)
    if json:
        console.json_document({"removed": gone, "dry_run": dry_run})
    else:
        for image in gone:
            name = image.tags[0] if image.tags else image.id[:19]
            why = f"  stays: {image.refused}" if image.refused else ""
            console.say(f"{name}  {size_words(image.size_bytes)}{why}")
        verb = "would go" if dry_run else "gone"
        console.say(f"{sum(image.refused is None for image in gone)} {verb}")
        if gone and not dry_run:
            console.note("the cache of builds is kept: docker builder prune")
    if any(image.refused for image in gone):
        raise typer.Exit(EXIT_FINDINGS)


def export(
    name: Name,
    to: Annotated[str, typer.Option("--to", help="tar, enroot or apptainer.", metavar="FORM")],
    variant: VariantFlag = None,
    registry: Registry = "",
    output: Annotated[
        Path | None,
        option("--output", "Without it, NAME-VARIANT.tar, .sqsh or .sif here.", "FILE"),
    ] = None,
    force: Annotated[bool, option("--force", "Replace the file.")] = False,
    json: JsonFlag = False,
) -> None:
    """Write an image into a file that Docker, enroot or Apptainer starts."""
    if to not in Form.__members__.values():
        raise UserError(f"nothing is exported to {to!r}", hint=choices_hint(to, map(str, Form)))
    form = Form(to)
    image, kind = read_name(name, variant)
    path = output or default_path(image.name, kind, form)
    done = write(tag_of(image, kind, registry), form, path, force=force)
    if json:
        console.json_document({"tag": done.tag, "to": form, "path": path,
                               "size_bytes": done.size_bytes, "sha256": done.sha256})  # fmt: skip
    else:
        console.say(f"{path}  {size_words(done.size_bytes)}  sha256:{done.sha256}")


app.command("list")(list_images)
app.command()(show)
app.command()(build)
app.command("test")(prove_images)
app.command()(lock)
app.command()(prune)
app.command()(export)
app.command()(distribute)
