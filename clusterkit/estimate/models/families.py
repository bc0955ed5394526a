"""What models of a type have that their `config.json` does not say: families.tsv, formulas.tsv."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from clusterkit.core.data import read_table
from clusterkit.estimate.models.config_keys import Config
from clusterkit.estimate.shapes import ModelShape


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


_HERE = Path(__file__).parent
_ROWS = {row["type"]: row for row in read_table(_HERE / "families.tsv")}
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
    rows = [row for row in read_table(_HERE / "formulas.tsv") if model_type in row["types"].split()]
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
