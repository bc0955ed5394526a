"""What the models of a type have that their `config.json` does not say: `families.tsv`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from clusterkit.core.data import read_table


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
    head_norms: bool = False
    """Whether queries and keys have a norm over a head each."""
    one_kv_head: bool = False
    """Whether all heads share one key and one value, unless the configuration says otherwise."""
    block_norm_biases: bool = False
    """Whether norms have biases though linear layers have none."""
    defaults: tuple[tuple[str, int], ...] = ()
    """What transformers takes where the configuration does not say it."""


_ROWS = {row["type"]: row for row in read_table(Path(__file__).with_name("families.tsv"))}
FAMILIES = frozenset(_ROWS)


@cache
def family_of(model_type: str) -> Family:
    """Return the constants of this type; those of a Llama for a type that is not known."""
    row = _ROWS.get(model_type, {"family": "-", "defaults": "-"})
    said: dict[str, Any] = {name: json.loads(text) for name, text in _pairs(row["family"])}
    return Family(
        **said, defaults=tuple((name, int(text)) for name, text in _pairs(row["defaults"]))
    )


def _pairs(cell: str) -> Iterator[tuple[str, str]]:
    for word in cell.split():
        name, equals, text = word.partition("=")
        if equals:
            yield name, text
