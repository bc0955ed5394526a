"""The frameworks that can start a job, from their registry."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from clusterkit.cli.explain.config_keys import key_facts
from clusterkit.cli.explain.reference import cluster_keys
from clusterkit.cli.explain.topic import WIDTH, Topic, paragraphs, table
from clusterkit.core.errors import UserError
from clusterkit.images.packages import image_with
from clusterkit.launch.frameworks import Framework, framework_names, load_framework

_HEAD = ("FRAMEWORK", "PACKAGE", "NODES", "SLOTS")
_LEGEND = (
    "PACKAGE: what pip installs on the nodes (-: what the script itself needs).",
    "NODES: a number, or also MIN:MAX, of which some may be lost.",
    "SLOTS: the same on all nodes (equal), or not (any).",
    "More of each: clusterkit explain NAME.",
)


def topics() -> Iterator[Topic]:
    """Yield the table of frameworks, and one topic for each."""
    loaded = {name: _loaded(name) for name in framework_names()}
    yield Topic(
        name="frameworks",
        summary="what can start the processes of a job (--framework)",
        text="\n".join((*_rows(loaded), "", *_LEGEND)),
    )
    for name, framework in loaded.items():
        yield _topic(name, framework)


def _loaded(name: str) -> Framework | UserError:
    try:
        return load_framework(name)
    except UserError as error:  # a third party's; the others are still worth explaining
        return error


def _rows(loaded: Mapping[str, Framework | UserError]) -> Iterator[str]:
    """Yield the lines of one table: what each framework needs, and below it what it gives."""
    cells = {name: _cells(name, found) for name, found in loaded.items()}
    widths = [max(map(len, column)) for column in zip(_HEAD, *cells.values(), strict=True)]
    indent = " " * (widths[0] + 2)

    def line(row: tuple[str, ...]) -> str:
        return "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip()

    yield line(_HEAD)
    for name, found in loaded.items():
        yield line(cells[name])
        for text in _gives(found):
            yield textwrap.fill(
                text,
                WIDTH,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )


def _cells(name: str, found: Framework | UserError) -> tuple[str, str, str, str]:
    if isinstance(found, UserError):
        return name, "-", "-", "-"
    nodes = "MIN:MAX" if found.elastic else "a number"
    return name, found.package or "-", nodes, "any" if found.uneven_slots else "equal"


def _gives(found: Framework | UserError) -> Iterator[str]:
    if isinstance(found, UserError):
        yield "cannot be loaded"
        return
    yield found.summary
    if image := image_with(found):
        yield f"image {image}"
    if found.provides:
        yield f"sets {' '.join(found.provides)}"


def _topic(name: str, framework: Framework | UserError) -> Topic:
    if isinstance(framework, UserError):
        text = str(framework)
        return Topic(name=name, summary="cannot be loaded", text=text, group="frameworks")
    rows = [("package", framework.package or "none but what the script needs")]
    rows.append(("image", framework.image or "none of the catalogue has it"))
    rows.append(("nodes", "MIN:MAX, may grow and shrink" if framework.elastic else "fixed number"))
    uneven = "may differ in slots" if framework.uneven_slots else "all with the same slots"
    rows.append(("slots", f"nodes {uneven}"))
    if framework.provides:
        rows.append(("sets", ", ".join(framework.provides)))
    if framework.by_hand:
        rows.append(("by hand", framework.by_hand))
    text = paragraphs(f"{framework.summary}.") + "\n\n" + table(rows)
    if name in cluster_keys():
        key = cluster_keys()[name]
        text += "\n\n" + paragraphs("As a key of a cluster:", key.description)
        text += "\n\n" + table(key_facts(key))
    return Topic(
        name=name,
        summary=framework.summary,
        text=text,
        group="frameworks",
    )
