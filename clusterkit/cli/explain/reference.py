"""The keys of `clusterkit.yaml` and of job files, from the descriptions in their schemas.

As data for the reference page, and as topics.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from clusterkit.cli.explain.topic import Topic, first_sentence, paragraphs, table
from clusterkit.config.load import SCALAR_KEYS
from clusterkit.config.schema import ClusterModel, ConfigModel, kinds_of
from clusterkit.config.sources import variable
from clusterkit.core.model import ClusterKind, ClusterSpec
from clusterkit.launch.jobfile import JobFile


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDoc:
    """One key: what it means, where it applies, and what it is when nobody sets it."""

    name: str
    description: str
    example: str
    kinds: tuple[ClusterKind, ...] = ()
    choices: tuple[str, ...] = ()
    default: str = ""
    variable: str = ""
    """The environment variable that sets it, where there is one."""


def cluster_keys() -> Mapping[str, KeyDoc]:
    """Return the keys of one cluster, in the order of the schema."""
    defaults = {field.name: plain_default(field) for field in dataclasses.fields(ClusterSpec)}
    return {
        doc.name: dataclasses.replace(
            doc,
            kinds=kinds_of(doc.name),
            default=defaults.get(doc.name, ""),
            variable=variable(doc.name) if doc.name in SCALAR_KEYS else "",
        )
        for doc in _documented(ClusterModel)
    }


def file_keys() -> Mapping[str, KeyDoc]:
    """Return the top-level keys of `clusterkit.yaml`."""
    return {doc.name: doc for doc in _documented(ConfigModel)}


def job_keys() -> Mapping[str, KeyDoc]:
    """Return the keys of a job file."""
    return {doc.name: doc for doc in _documented(JobFile)}


def plain_default(field: Any) -> str:
    """Return the default of a field of `ClusterSpec` as a file would spell it; "" for none."""
    value = field.default
    if value is dataclasses.MISSING or value is None or value == ():
        return ""
    return spell(value)


def spell(value: Any) -> str:
    """Return a value of a `ClusterSpec` on one line, as YAML would spell it."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {text}" for name, text in value.items()) + "}"
    if isinstance(value, tuple):
        if value and isinstance(value[0], int):
            return "-".join(map(str, value))
        return "[" + ", ".join(str(getattr(item, "name", item)) for item in value) + "]"
    return "-" if value is None else str(value)


def _documented(model: type[BaseModel]) -> tuple[KeyDoc, ...]:
    return tuple(
        KeyDoc(
            name=name,
            description=field.description or "",
            example=str((field.examples or [""])[0]),
            choices=_choices(field.annotation),
        )
        for name, field in model.model_fields.items()
    )


def _choices(annotation: Any) -> tuple[str, ...]:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(str(member.value) for member in annotation)
    if get_origin(annotation) is Literal:
        return tuple(map(str, get_args(annotation)))
    found = [_choices(part) for part in get_args(annotation)]
    return next((choices for choices in found if choices), ())


def tables() -> Mapping[str, str]:
    """Return the lists of keys, and what is known of the key `preflight`, as tables."""
    listed = {"file_keys": file_keys(), "cluster_keys": cluster_keys(), "job_keys": job_keys()}
    tables = {
        name: table((doc.name, first_sentence(doc.description)) for doc in docs.values())
        for name, docs in listed.items()
    }
    return {**tables, "preflight_key": table(key_facts(cluster_keys()["preflight"]))}


def topics() -> Iterator[Topic]:
    """Yield a topic for each key of `clusterkit.yaml`."""
    for doc in (*file_keys().values(), *cluster_keys().values()):
        yield Topic(
            name=doc.name,
            summary=first_sentence(doc.description),
            text=paragraphs(doc.description) + "\n\n" + table(key_facts(doc)),
            group="config",
        )


def key_facts(doc: KeyDoc) -> Iterator[tuple[str, str]]:
    """Yield what is known of a key beside its description, as rows of a table."""
    if doc.kinds:
        yield "kinds", ", ".join(doc.kinds)
    if doc.choices:
        yield "choices", ", ".join(doc.choices)
    yield "default", doc.default or "none"
    yield "example", f"{doc.name}: {doc.example}"
    if doc.variable:
        yield "variable", doc.variable
