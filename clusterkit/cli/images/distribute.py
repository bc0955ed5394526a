"""`clusterkit images distribute`: the same build of an image on every node, without a registry."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.core.errors import UserError
from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.core.text import size_in_words, table
from clusterkit.images.catalogue import IMAGES, VARIANTS, read_name, tag_of

if TYPE_CHECKING:
    from clusterkit.images.distribute import Distributed, Outcome, Watch

_COLOURS = {"there already": "green", "sent": "green", "failed": "red"}
_EVERY_S = 0.2
_SLOW_S = 10.0
_SHORT = len("sha256:") + 12


@explained
def distribute(
    name: str,
    cluster: str | None = None,
    hosts: str | None = None,
    variant: str | None = None,
    registry: str = "",
    json: JsonFlag = False,
) -> None:
    """Bring an image of this machine's Docker to that of every node, by SSH.

    Nodes that have this very build are left alone; the others are sent the
    layers that they lack. To run it again is safe. Exit code 1 where a node
    does not have it in the end.
    """
    from clusterkit.config.load import load_settings
    from clusterkit.images.archive import find_image
    from clusterkit.images.distribute import Outcome, distribute_image, require_engines
    from clusterkit.preflight.hosts import hosts_of
    from clusterkit.preflight.request import PreflightOptions

    reference, is_ours = _reference(name, variant, registry)
    spec = load_settings().cluster(cluster)
    require_engines(spec)
    build = f"clusterkit images build {reference.rpartition('/')[2]}"
    image = find_image(reference, hint=build if is_ours else None)
    found = hosts_of(PreflightOptions(hosts=hosts), spec, "ssh")
    nodes = tuple(host.name for host in found)
    with _progress(reference, len(nodes)) as watch:
        done = distribute_image(reference, image, spec, nodes, watch=watch)
    if json:
        console.json_document(
            {"cluster": spec.name, "image": reference, "digest": image.digest, "nodes": done}
        )
    else:
        _report(f"{reference}  {image.digest[:_SHORT]}", done)
    if any(one.outcome is Outcome.FAILED for one in done):
        raise typer.Exit(EXIT_FINDINGS)


def _reference(name: str, variant: str | None, registry: str) -> tuple[str, bool]:
    """Return what Docker calls the image, and whether the catalogue has it."""
    word, colon, behind = name.removeprefix("clusterkit/").partition(":")
    if word in IMAGES and (not colon or behind in VARIANTS):
        return tag_of(*read_name(name, variant), registry), True
    if variant not in {None, os.environ.get("CLUSTERKIT_IMAGES_VARIANT")}:
        raise UserError(
            f"--variant {variant}: {name} is not an image of the catalogue",
            hint="leave it out; the catalogue: clusterkit images list",
        )
    return name, False


@contextmanager
def _progress(reference: str, nodes: int) -> Iterator[Watch]:
    """Show how far it is."""
    began = shown = time.monotonic()
    with console.progress() as show:

        def watch(what: str, sent: int, total: int) -> None:
            nonlocal began, shown
            now = time.monotonic()
            if not sent:
                began = now
            elif sent < total and now - shown < _EVERY_S:
                return
            shown = now
            show(_step(what, reference, nodes, sent, total, now - began))

        yield watch


def _step(what: str, reference: str, nodes: int, sent: int, total: int, seconds: float) -> str:
    match what:
        case "asking":
            return f"asking {nodes} nodes what they have of {reference}"
        case "saving":
            return f"docker save {reference}"
        case _ if sent >= total:
            return f"{size_in_words(sent)} sent; the engines unpack it"
    rate = f", {sent / 1e6 / seconds:.0f} MB/s" if seconds >= 1 else ""
    return f"{reference}  {sent / total:.0%}  {size_in_words(sent)} of {size_in_words(total)}{rate}"


def _report(image: str, done: Iterable[Distributed]) -> None:
    """Print one line for all nodes of which the same is to be said, the worst last."""
    from clusterkit.images.distribute import Outcome

    groups: dict[tuple[Outcome, int, str | None, str, str | None], list[Distributed]] = {}
    for one in done:
        key = (one.outcome, one.bytes, one.replaced, one.detail, one.hint)
        groups.setdefault(key, []).append(one)
    severity, rows = list(Outcome), []
    for row in sorted(groups.values(), key=lambda row: severity.index(row[0].outcome)):
        outcome, hint = row[0].outcome, row[0].hint
        word = console.coloured(outcome.value, _COLOURS[outcome.value])
        about = "" if outcome is Outcome.FAILED else f"{image}  "
        rows.append((fold_set(one.node for one in row), f"{about}{word}{_details(row)}"))
        rows += [("", f"hint: {hint}")] if hint else []
    console.say(*table(rows))


def _details(row: list[Distributed]) -> str:
    one = row[0]
    details = [one.detail] if one.detail else []
    if one.bytes:
        seconds = max(each.seconds for each in row)
        size = size_in_words(one.bytes)
        details.append(f"{size} in {seconds:.{int(seconds < _SLOW_S)}f} s")
    if one.replaced:
        details.append(f"in place of {one.replaced[:_SHORT]}")
    return f"  {', '.join(details)}" if details else ""
