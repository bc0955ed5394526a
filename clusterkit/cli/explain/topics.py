"""All topics that `clusterkit explain` knows: each function of `_PROVIDERS` yields some."""

from __future__ import annotations

from collections.abc import Mapping

from clusterkit.cli.explain import checks, frameworks, lists, reference, variables
from clusterkit.cli.explain.topic import Topic
from clusterkit.core.errors import UserError, did_you_mean

_PROVIDERS = (
    checks.topics,
    reference.topics,
    lists.diagnose,
    lists.exit_codes,
    frameworks.topics,
    lists.links,
    variables.rules,
    checks.preflight,
    lists.runtime,
    lists.states,
    lists.estimates,
    variables.topics,
)
"""A later one may say more of a name that an earlier one has."""


def all_topics() -> Mapping[str, Topic]:
    """Return every topic by name, in the order of their providers."""
    return {topic.name: topic for topics in _PROVIDERS for topic in topics()}


def find_topic(word: str) -> Topic:
    """Return the topic called `word`; case does not count, nor `-` against `_`.

    Unless two topics differ in nothing else: the area `ENV` and the key `env`.

    Raises:
        UserError: there is no such topic.
    """
    topics = all_topics()
    folded = {_fold(name): topic for name, topic in topics.items()}
    topic = topics.get(word.strip()) or folded.get(_fold(word))
    if topic is None:
        near = did_you_mean(_fold(word), folded)
        raise UserError(
            f"nothing is known about {word!r}",
            hint=near or "`clusterkit explain` lists the topics",
        )
    return topic


def _fold(word: str) -> str:
    return word.strip().lower().replace("_", "-")
