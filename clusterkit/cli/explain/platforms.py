"""The platforms that clusters can be on, from their files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from clusterkit.cli.explain.reference import spell
from clusterkit.cli.explain.topic import Topic, filled, first_sentence, paragraphs, table
from clusterkit.config.platforms import Platform, fabric_of, load_platform, platform_names
from clusterkit.core.text import wrapped


def listed() -> str:
    """Return the table of platforms."""
    return table((topic.name, topic.summary) for topic in topics())


def topics() -> Iterator[Topic]:
    """Yield one topic for each platform that clusterkit ships."""
    yield from (platform_topic(load_platform(name)) for name in platform_names())


def platform_topic(platform: Platform) -> Topic:
    """Return what there is to say of a platform: what it sets, its instance types, its sources.

    Settings stand there as a file would spell them, however long.
    """
    about = platform.model.about or "A platform."
    parts = [paragraphs(about)]
    if rows := _settings(platform.model.cluster):
        parts += ["It sets, below your own values:", rows]
    if platform.model.net_plugin:
        parts.append(filled(f"NCCL's plug-in (checked by NCCL007): {platform.model.net_plugin}"))
    instances = platform.instances
    if instances:
        facts = table((name, ", ".join(_facts(one))) for name, one in instances.items())
        parts += ["Instance types (instance_type):", facts]
    alike: dict[str, list[str]] = {}
    for name, instance in instances.items():
        alike.setdefault(_settings(instance.cluster), []).append(name)
    for rows, names in alike.items():
        parts += [filled(f"With {' or '.join(names)}, also:"), rows] if rows else []
    if platform.model.source:
        sources = (wrapped(source, "  ", "    ") for source in platform.model.source)
        parts += ["Sources:", "\n".join(chain.from_iterable(sources))]
    text = "\n\n".join(parts)
    return Topic(name=platform.name, summary=first_sentence(about), text=text, group="platforms")


def _settings(given: Any) -> str:
    """Return what a model gives, in lines such as `env.NCCL_NET: gIB`."""
    return "\n".join(f"  {key}: {value}".rstrip() for key, value in _values(given))


def _values(given: Any) -> Iterator[tuple[str, str]]:
    for key in type(given).model_fields if given is not None else ():
        value = getattr(given, key)
        if isinstance(value, dict):
            yield from ((f"{key}.{name}", text) for name, text in value.items())
        elif isinstance(value, tuple):
            yield from ((key, text) for text in value)
        elif value is not None:
            yield key, spell(value)


def _facts(instance: Any) -> Iterator[str]:
    if instance.gpus:
        yield f"{instance.gpus} {instance.gpu or 'GPUs'}"
    if fabric := fabric_of(instance):
        yield fabric
