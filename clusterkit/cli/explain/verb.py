"""`clusterkit explain`: what a word of clusterkit means."""

from __future__ import annotations

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained

CONTEXT_SETTINGS = {"ignore_unknown_options": True}
"""A flag of another verb is a topic, such as --spares, and so is the exit code -9."""


@explained
def explain(
    topic: list[str] | None = None,
    json: JsonFlag = False,
) -> None:
    """Explain a topic: exit codes, states, frameworks, config keys; without one, list them."""
    from clusterkit.cli.explain.topic import table
    from clusterkit.cli.explain.topics import all_topics, find_topic

    if topic:
        found = find_topic(" ".join(topic))
        if json:
            console.json_document({"topic": found})
            return
        console.say(console.bold(found.name))
        console.say(found.text)
        return
    topics = all_topics()
    if json:
        console.json_document({"topics": tuple(topics.values())})
        return
    console.say(table((t.name, t.summary) for t in topics.values() if t.group is None))
    console.say("\nand each single one of these: clusterkit explain gpu_request")
