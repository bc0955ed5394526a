"""`clusterkit images test`."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.cli.images.flags import Network, Registry, VariantFlag


def prove_images(
    names: Annotated[
        list[str],
        typer.Argument(help="Images that are built here.", metavar="NAME..."),
    ],
    variant: VariantFlag = None,
    registry: Registry = "",
    network: Network = None,
    timeout: Annotated[
        int, typer.Option("--timeout", help="Seconds for one health test.", min=1, metavar="S")
    ] = 600,
    json: JsonFlag = False,
) -> None:
    """Run the health tests of images: torch sees the GPUs, two ranks train.

    The container gets no network unless --network says otherwise.
    """
    from clusterkit.images.health import prove
    from clusterkit.images.names import read_name, tag_of

    wanted = [read_name(name, variant) for name in names]
    found = []
    for image, kind in wanted:
        tag = tag_of(image, kind, registry)
        health = prove(image, kind, tag, network=network, timeout_s=float(timeout))
        found.append(health)
        if json:
            continue
        if health.output:
            console.note(console.dim("\n".join(f"  {line}" for line in health.output.splitlines())))
        gpus = f", {health.gpus} GPUs" if health.gpus else ""
        word, colour = ("healthy", "green") if health.healthy else ("unhealthy", "red")
        console.say(f"{tag}  {console.coloured(word, colour)} in {health.seconds:.0f} s{gpus}")
        if health.skipped:
            console.warn(health.skipped)
        if health.problem is not None:
            console.error(str(health.problem))
    if json:
        console.json_document({"images": found})
    if not all(health.healthy for health in found):
        raise typer.Exit(EXIT_FINDINGS)
