"""The frameworks that can start a job, from their registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterkit.cli.explain.reference import cluster_keys, key_facts
from clusterkit.cli.explain.topic import Topic, filled, first_sentence, paragraphs, table, texts
from clusterkit.core.errors import UserError
from clusterkit.core.text import table as columns
from clusterkit.images.packages import image_with
from clusterkit.launch.frameworks import Framework, framework_names, load_framework

_HEAD = ("FRAMEWORK", "PACKAGE", "NODES", "SLOTS")
_LEGEND = (
    "PACKAGE: what pip installs on the nodes (-: what the script itself needs).",
    "NODES: a number, or also MIN:MAX, of which some may be lost.",
    "SLOTS: the same on all nodes (equal), or not (any).",
    "More of each: clusterkit explain NAME. Which one when:",
    "docs/explanation/which-framework.md.",
)
_FITS = 75
"""Characters of a command in a line of 80."""


def listed() -> str:
    """Return the table of frameworks."""
    return "\n".join((*_rows(_all()), "", *_LEGEND))


def choice() -> str:
    """Return which strategy when, each with the command that runs an example of it."""
    lines = []
    for number, (command, when) in enumerate(texts("choice").items(), start=1):
        start, script = command.split("examples/") if len(command) > _FITS else (command, "")
        lines += [filled(when, f"{number}. ", "   "), f"     {start}" + "\\" * bool(script)]
        lines += [f"       examples/{script}"] if script else []
    return "\n".join(lines)


def topics() -> Iterator[Topic]:
    """Yield one topic for each framework, and for each variable that one sets for its ranks."""
    loaded = _all()
    for name, framework in loaded.items():
        yield _topic(name, framework)
    under: dict[str, list[str]] = {}
    for name, found in loaded.items():
        for variable in () if isinstance(found, UserError) else found.provides:
            under.setdefault(variable, []).append(name)
    about = texts("ranks")
    for variable, names in under.items():
        text = about.get(variable, "")
        who = f"Set for the ranks under {', '.join(names)}."
        summary = first_sentence(text or who)
        yield Topic(name=variable, summary=summary, text=paragraphs(text, who), group="runtime")


def _all() -> Mapping[str, Framework | UserError]:
    return {name: _loaded(name) for name in framework_names()}


def _loaded(name: str) -> Framework | UserError:
    try:
        return load_framework(name)
    except UserError as error:  # a third party's; the others are still worth explaining
        return error


def _rows(loaded: Mapping[str, Framework | UserError]) -> Iterator[str]:
    """Yield the lines of one table: what each framework needs, and below it what it gives."""
    head, *lines = columns([_HEAD, *(_cells(name, found) for name, found in loaded.items())])
    indent = " " * head.index(_HEAD[1])
    yield head
    for line, found in zip(lines, loaded.values(), strict=True):
        yield line
        yield from (filled(text, indent, indent) for text in _gives(found))


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
    uneven = "may differ in slots" if framework.uneven_slots else "all with the same slots"
    facts = {
        "package": framework.package or "none but what the script needs",
        "image": framework.image or "none of the catalogue has it",
        "nodes": "MIN:MAX, may grow and shrink" if framework.elastic else "fixed number",
        "slots": f"nodes {uneven}",
        "sets": ", ".join(framework.provides),
        "by hand": framework.by_hand,
        "settings": texts("settings").get(name, ""),
    }
    rows = [(fact, text) for fact, text in facts.items() if text]
    text = paragraphs(f"{framework.summary}.") + "\n\n" + table(rows)
    if name in cluster_keys():
        key = cluster_keys()[name]
        text += "\n\n" + paragraphs("As a key of a cluster:", key.description)
        text += "\n\n" + table(key_facts(key))
    return Topic(name=name, summary=framework.summary, text=text, group="frameworks")
