"""Layers merged key by key; every value keeps where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit.config.document import Document
from clusterkit.config.schema import ClusterModel
from clusterkit.config.settings import Origin
from clusterkit.core.errors import Position, Problem

EXCLUSIVE = {"hosts": "hostfile", "hostfile": "hosts"}
"""Keys that say the same in two ways: giving one takes back the other of a weaker layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value as one layer gave it."""

    value: Any
    origin: Origin
    position: Position | None
    base: Path | None = None
    """The folder from which a relative path counts; None for the working folder."""


class Merge:
    """The values of one cluster while its layers are laid over each other, weakest first."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, ...], Given] = {}

    def put(self, key: str, given: Given) -> None:
        """Lay a value over what weaker layers gave; None goes back to the default."""
        if given.value is None:
            self._drop(key)
            return
        if key in EXCLUSIVE:
            self._drop(EXCLUSIVE[key])
        self._given[key,] = given

    def put_item(self, key: str, name: str, given: Given) -> None:
        """Lay one entry of a mapping, such as a variable of `env`, over the others."""
        self._given[key, name] = given

    def get(self, key: str) -> Given | None:
        """Return the value of a key that is no mapping, if one was given."""
        return self._given.get((key,))

    def items(self) -> Iterator[tuple[tuple[str, ...], Given]]:
        """Yield every value with its path inside the cluster."""
        yield from self._given.items()

    def values(self) -> dict[str, Any]:
        """Return the merged values by key."""
        result: dict[str, Any] = {}
        for path, given in self._given.items():
            if len(path) == 1:
                result[path[0]] = given.value
            else:
                result.setdefault(path[0], {})[path[1]] = given.value
        return result

    def _drop(self, key: str) -> None:
        for path in [path for path in self._given if path[0] == key]:
            del self._given[path]


def lay_file(
    merge: Merge, name: str, model: ClusterModel, document: Document, origin: Origin, base: Path
) -> Iterator[Problem]:
    """Lay what a file says of cluster `name` over `merge`; yield what contradicts itself."""
    torn = model.hosts is not None and model.hostfile is not None
    for key in ClusterModel.model_fields:  # the order of the schema, not of the set
        if key not in model.model_fields_set or (torn and key == "hostfile"):
            continue
        value = getattr(model, key)
        path = ("clusters", name, key)
        if isinstance(value, Mapping):
            for item, text in value.items():
                merge.put_item(key, item, _given(text, document, (*path, item), origin, base))
        else:
            merge.put(key, _given(value, document, path, origin, base))
    if torn:
        yield Problem(
            message="hosts and hostfile exclude each other",
            key=f"clusters.{name}.hostfile",
            position=document.key_position(("clusters", name, "hostfile")),
            hint="keep one of the two",
        )


def _given(
    value: Any, document: Document, path: tuple[str, ...], origin: Origin, base: Path
) -> Given:
    position = document.key_position(path)
    return Given(
        value=value,
        origin=Origin(layer=origin.layer, source=origin.source, line=position.line),
        position=position,
        base=base,
    )
