"""Read a `config.json`: many names for one thing, and what its type has that it does not say.

The names stand in config_keys.tsv, what models of a type have in families.tsv and formulas.tsv.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from clusterkit.core.data import read_table
from clusterkit.core.errors import Problem, UserError
from clusterkit.estimate.shapes import ModelShape

LARGEST = 10**8
"""No width, count or vocabulary is larger: the file means something else, then."""
MOST_LAYERS = 10**4

_OTHERS = {row["key"]: row["others"].split() for row in read_table(__file__, "config_keys.tsv")}


def names_of(key: str) -> tuple[str, ...]:
    """Return all names of a value, `key` first."""
    return (key, *_OTHERS.get(key, ()))


class Config:
    """The values of a document; what is wrong with them is collected, not raised."""

    def __init__(
        self, document: Mapping[str, Any], *, source: str, family: Family, notes: list[str]
    ) -> None:
        """Read from `document`, found at `source`; what had to be assumed is added to `notes`."""
        self.family = family
        self.notes = notes
        self._document = document
        self._source = source
        self._problems: list[Problem] = []

    def whole(self, *names: str, most: int = LARGEST) -> int | None:
        """Return the first of these keys that is there, a positive whole number."""
        found = self.value(*names)
        if found is None:
            return None
        name, value = found
        number = _whole(value)
        if number is None or not 0 < number <= most:
            hint = f"it has to be a whole number from 1 to {most}"
            self.refuse(f"{name} is {value!r}", hint, key=name)
            return None
        return number

    def whole_or(self, name: str, usual: int) -> int:
        """Return such a number, or what is usual, which is noted where the key is missing."""
        if self.value(name) is None:
            self.notes.append(f"{name} is not given: {usual}")
        return self.whole(name) or usual

    def count(self, *names: str) -> int:
        """Return such a number, of something that may be absent: 0 then."""
        found = self.value(*names)
        return 0 if found is None or found[1] == 0 else self.whole(*names) or 0

    def needed(self, *names: str, most: int = LARGEST) -> int:
        """Return such a number that nothing can stand in for; 1 where it is missing."""
        if self.value(*names) is None:
            first, *others = names_of(names[0])
            either = f" (or {', '.join(others[:3])})" if others else ""
            hint = f"add {first}{either}, or name a preset: `clusterkit estimate --model NAME`"
            problem = Problem(message=f"{self._source} has no {first}", hint=hint)
            self._problems.append(problem)
        return self.whole(*names, most=most) or 1

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return the first of these keys that is there, true or false."""
        found = self.value(*names)
        if found is None:
            return default
        name, value = found
        if not isinstance(value, bool):
            self.refuse(f"{name} is {value!r}", "it has to be true or false", key=name)
            return default
        return value

    def value(self, *names: str) -> tuple[str, Any] | None:
        """Return the first of these keys that is there and not null, by any of its names."""
        for name in (name for key in names for name in names_of(key)):
            if self._document.get(name) is not None:
                return name, self._document[name]
        return None

    def part(self, name: str) -> Config:
        """Return the object under this key; an empty one where there is none."""
        value = self._document.get(name)
        known = value if isinstance(value, Mapping) else {}
        inner = Config(known, source=self._source, family=self.family, notes=self.notes)
        inner._problems = self._problems
        return inner

    def refuse(self, message: str, hint: str, *, key: str) -> None:
        """Note that a value cannot be used."""
        self._problems.append(Problem(message=f"{message} in {self._source}", hint=hint, key=key))

    def check(self) -> None:
        """Raise what was found, if anything was.

        Raises:
            UserError: values are missing or cannot be.
        """
        if self._problems:
            raise UserError(problems=tuple(dict.fromkeys(self._problems)))


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The constants of a model type; `ModelShape` explains the words."""

    gated: bool = True
    biases: bool = False
    qkv_bias: bool = False
    tied: bool = False
    norms: int = 2
    positions: int | None = None
    """Learned position embeddings: rows beyond those that the configuration says; None: none."""
    one_kv_head: bool = False
    """Whether all heads share one key and one value, unless the configuration says otherwise."""
    defaults: tuple[tuple[str, int], ...] = ()
    """What transformers takes where the configuration does not say it."""


_ROWS = {row["type"]: row for row in read_table(__file__, "families.tsv")}
FAMILIES = frozenset(_ROWS)


@cache
def family_of(model_type: str) -> Family:
    """Return the constants of this type; those of a Llama for a type that is not known."""
    row = _ROWS.get(model_type, {"family": "-", "defaults": "-"})
    values: dict[str, Any] = {name: json.loads(text) for name, text in _pairs(row["family"])}
    return Family(
        **values, defaults=tuple((name, int(text)) for name, text in _pairs(row["defaults"]))
    )


def _pairs(cell: str) -> Iterator[tuple[str, str]]:
    for word in cell.split():
        name, equals, text = word.partition("=")
        if equals:
            yield name, text


def completed(shape: ModelShape, model_type: str, config: Config) -> ModelShape:
    """Return `shape` with what is special to its type, by `formulas.tsv`."""
    shape = replace(shape, other_block_params=_own_biases(shape, config))
    table = read_table(__file__, "formulas.tsv")
    rows = [row for row in table if model_type in row["types"].split()]
    if not rows:
        return shape
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - few types need it

    environment = Environment(undefined=StrictUndefined)  # noqa: S701 - it renders nothing
    names: dict[str, Any] = {name: getattr(config, name) for name in _READS}
    names["attention"] = config.part("attn_config")
    for row in rows:
        known = {field.name: getattr(shape, field.name) for field in fields(shape)}
        formula = environment.compile_expression(row["formula"])
        value: Any = formula(names, shape=shape, **known)
        if row["field"] in known:
            shape = replace(shape, **{row["field"]: value})
        else:
            names[row["field"]] = value
    return shape


_READS = ("flag", "count", "whole", "needed")


def _own_biases(shape: ModelShape, config: Config) -> int:
    """Return the biases of linear layers that a gated model was given by its configuration."""
    if shape.biases or not shape.gated:
        return 0
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    count = 0
    if config.flag("attention_bias", "bias"):
        count += shape.hidden + (0 if shape.qkv_bias else query + 2 * key)
    if config.flag("mlp_bias") and not shape.experts:
        count += 2 * shape.ffn + shape.hidden
    return count
