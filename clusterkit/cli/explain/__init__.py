"""What `clusterkit explain` knows: the modules of this package provide topics.

A provider has one function, `topics()`, that yields `Topic` values; adding a module adds its topics
and touches no other file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from clusterkit.cli.explain.topic import Topic
from clusterkit.core.errors import UserError, did_you_mean

__all__ = ["Topic", "all_topics", "find_topic"]


def all_topics() -> Mapping[str, Topic]:
    """Return every topic by name, in the order of their providers."""
    found: dict[str, Topic] = {}
    for module in pkgutil.iter_modules(__path__):
        provider = importlib.import_module(f"{__name__}.{module.name}")
        if hasattr(provider, "topics"):
            found |= {topic.name: topic for topic in provider.topics()}
    return found


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
