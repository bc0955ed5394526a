"""The frameworks, from their registry."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

from clusterkit.images.packages import image_with
from clusterkit.launch import frameworks
from clusterkit.launch.frameworks import Framework
from docs.generate.page import Page, anchor, blocks, code, fenced, prose, table

_HEAD = ("framework", "starts", "package", "nodes", "slots")


def pages(root: Path) -> Iterator[Page]:
    """Yield the one page of this module."""
    del root
    every = tuple(_own())
    rows = (
        (
            f"[{one.name}](#framework-{one.name})",
            prose(one.summary),
            code(one.package),
            "`MIN:MAX`" if one.elastic else "fixed",
            "any" if one.uneven_slots else "equal",
        )
        for one in every
    )
    yield Page(
        path="reference/frameworks.md",
        text=blocks(
            "# Frameworks",
            "What can start the processes of a job: `--framework NAME`. [How to use each]"
            "(../how-to/frameworks.md), and [how to add one](../how-to/framework.md).",
            table(_HEAD, rows),
            "*package*: what pip installs on the nodes; empty where only the script knows. "
            "*nodes*: a number, or also `MIN:MAX`, of which some may be lost. *slots*: the same "
            "on all nodes, or not.",
            *(part for one in every for part in _section(one)),
        ),
    )


def _own() -> Iterator[Framework]:
    """Yield the frameworks of clusterkit itself, and not those that others installed here."""
    for module in pkgutil.iter_modules(frameworks.__path__):
        loaded = importlib.import_module(f"{frameworks.__name__}.{module.name}")
        if isinstance(found := getattr(loaded, "FRAMEWORK", None), Framework):
            yield found


def _section(one: Framework) -> Iterator[str]:
    yield anchor(f"framework-{one.name}")
    yield f"## {one.name}"
    yield f"{prose(one.summary[:1].upper() + one.summary[1:].rstrip('.'))}."
    if image := image_with(one):
        yield f"An image that has it: {code(image)}."
    if one.provides:
        yield "Every rank finds " + ", ".join(code(name) for name in one.provides) + "."
    if one.by_hand:
        yield "By hand, over SSH:"
        yield fenced(one.by_hand)
