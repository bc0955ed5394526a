"""The frameworks that can start a job, from their registry."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.config.reference import cluster_keys
from clusterkit.errors import UserError
from clusterkit.explain.config_keys import key_facts
from clusterkit.explain.topic import Topic, paragraphs, table
from clusterkit.frameworks import framework_names, load_framework


def topics() -> Iterator[Topic]:
    """Yield the list of frameworks, and one topic for each."""
    each = tuple(_topic(name) for name in framework_names())
    yield Topic(
        name="frameworks",
        summary="what can start the processes of a job (--framework)",
        text=table((topic.name, topic.summary) for topic in each),
    )
    yield from each


def _topic(name: str) -> Topic:
    try:
        framework = load_framework(name)
    except UserError as error:  # a third party's; the others are still worth explaining
        return Topic(name=name, summary="cannot be loaded", text=str(error), group="frameworks")
    rows = [("package", framework.package), ("image", framework.image)]
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
