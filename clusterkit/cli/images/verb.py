"""`clusterkit images`: build the images that jobs run in, prove them, and keep them in order."""

from __future__ import annotations

import typer

from clusterkit.cli.images.build import build, prove_images
from clusterkit.cli.images.distribute import distribute
from clusterkit.cli.images.keep import export, lock, prune
from clusterkit.cli.images.look import list_images, show

app = typer.Typer(
    help="Build the images that jobs run in, prove them, and keep them in order.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command("list")(list_images)
app.command()(show)
app.command()(build)
app.command("test")(prove_images)
app.command()(lock)
app.command()(prune)
app.command()(export)
app.command()(distribute)
