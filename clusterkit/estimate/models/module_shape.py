"""The shape of a module that was built: what it is made of, and what it says it was built from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterkit.core.errors import UserError
from clusterkit.estimate.models.config_keys import names_of
from clusterkit.estimate.models.families import FAMILIES
from clusterkit.estimate.models.model_config import shape_of
from clusterkit.estimate.models.named import llama_of
from clusterkit.estimate.shapes import ModelShape

_TOLD = (
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
    *("num_experts", "num_experts_per_tok"),
)
"""What attributes of attention and MLP tell, where the model keeps no configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a module was found to be made of."""

    params: int
    blocks: tuple[int, ...] = ()
    """Parameters of each of its blocks."""
    block_weights: tuple[tuple[int, ...], ...] = ()
    """Shapes of the weights of its first block, as (out, in)."""
    embeddings: tuple[tuple[int, ...], ...] = ()
    heads: tuple[tuple[int, ...], ...] = ()
    """Shapes of the other matrices outside the blocks, but for those that are an embedding."""
    config: Mapping[str, Any]
    attributes: Mapping[str, int]

    @property
    def block_params(self) -> int | None:
        """Parameters of one block, of the usual sort; None where it has none."""
        return Counter(self.blocks).most_common(1)[0][0] if self.blocks else None


def shape_of_parts(parts: Parts, *, name: str) -> ModelShape:
    """Return the shape of a module: exact in its parameters, by block and in all.

    What it does not tell is assumed and said; a module without an embedding in front of blocks
    becomes a Llama of its size.

    Raises:
        UserError: it has no parameters.
    """
    if parts.params == 0:
        raise UserError(
            f"{name} builds a module without parameters: there is nothing to train",
            hint="name the function that returns the model: --model package.module:factory",
        )
    hidden = _hidden(parts)
    if hidden is None or not parts.blocks:
        shape = llama_of(parts.params)
        note = "it has no list of equal blocks behind an embedding: taken for a Llama of its size"
        return replace(shape, name=name, assumed=(note, *shape.assumed))
    notes: list[str] = []
    document = _document(parts, hidden, notes)
    try:
        shape = shape_of(document, name=name, source=name)
    except UserError as error:
        notes.append(f"its configuration cannot be read ({error.problems[0].message})")
        document = _document(replace(parts, config={}, attributes={}), hidden, notes)
        shape = shape_of(document, name=name, source=name)
    if document["model_type"] == "llama":
        shape = _as_built(shape, parts)
    return _exact(replace(shape, assumed=(*shape.assumed, *notes)), parts)


def _document(parts: Parts, hidden: int, notes: list[str]) -> Mapping[str, Any]:
    """Return a configuration: what the module says it was built from, corrected by what it has."""
    model_type = str(parts.config.get("model_type") or "").lower()
    names = [name for key in _TOLD for name in names_of(key)]
    told = {name: parts.attributes[name] for name in names if name in parts.attributes}
    document: dict[str, Any] = {
        **told,
        **parts.config,
        "model_type": model_type if model_type in FAMILIES else "llama",
        "hidden_size": hidden,
        "num_hidden_layers": len(parts.blocks),
        "vocab_size": _vocab(parts, hidden),
        "text_config": None,
    }
    if not _has(document, "intermediate_size"):
        document["intermediate_size"] = _ffn(parts, hidden)
    width, kv_width = _attention_width(parts, hidden), _kv_width(parts, hidden)
    if not _has(document, "num_attention_heads"):
        document["num_attention_heads"] = _heads((width, kv_width), document, notes)
    heads = next(
        document[name] for name in names_of("num_attention_heads") if document.get(name) is not None
    )
    if isinstance(heads, int) and 0 < heads <= width:
        if not _has(document, "head_dim"):
            document["head_dim"] = width // heads
        kv_heads = kv_width * heads // width
        if document["model_type"] == "llama" and not _has(document, "num_key_value_heads"):
            document["num_key_value_heads"] = kv_heads or heads
    return document


def _as_built(shape: ModelShape, parts: Parts) -> ModelShape:
    """Return `shape` with what the weights tell of a model of no known type."""
    hidden = shape.hidden
    outputs = [weight[0] for weight in parts.block_weights if _takes(weight, hidden)]
    gated = outputs.count(shape.ffn) > 1 or 2 * shape.ffn in outputs
    others = [rows for rows, width in parts.embeddings if width == hidden and rows != shape.vocab]
    return replace(
        shape,
        gated=gated or bool(shape.experts),
        tied=(shape.vocab, hidden) not in parts.heads,
        learned_positions=sum(others),
    )


def _exact(shape: ModelShape, parts: Parts) -> ModelShape:
    block = parts.block_params or 0
    shape = replace(shape, other_block_params=shape.other_block_params + block - shape.block_params)
    by_shape = replace(shape, exact_params=None).params
    return replace(
        shape,
        other_params=shape.other_params + parts.params - by_shape,
        exact_params=parts.params,
    )


def _hidden(parts: Parts) -> int | None:
    """Return the width of the residual stream: that of the embedding, if the blocks know it."""
    widths = {size for weight in parts.block_weights for size in weight}
    found = [embedding for embedding in parts.embeddings if embedding[1] in widths]
    return max(found, key=lambda each: each[0] * each[1])[1] if found else None


def _vocab(parts: Parts, hidden: int) -> int:
    return max(rows for rows, width in parts.embeddings if width == hidden)


def _ffn(parts: Parts, hidden: int) -> int:
    """Return the widest input of a matrix that leads back to the residual stream."""
    inputs = [weight[-1] for weight in parts.block_weights if weight[-2:-1] == (hidden,)]
    return max(inputs, default=4 * hidden)


def _attention_width(parts: Parts, hidden: int) -> int:
    """Return the narrowest such input, that of attention's output projection."""
    inputs = [weight[-1] for weight in parts.block_weights if weight[-2:-1] == (hidden,)]
    return min(inputs, default=hidden)


def _kv_width(parts: Parts, hidden: int) -> int:
    """Return the width of all keys: two matrices have it, or one has that of all three together."""
    width, ffn = _attention_width(parts, hidden), _ffn(parts, hidden)
    outputs = [weight[0] for weight in parts.block_weights if _takes(weight, hidden)]
    outputs = [rows for rows in outputs if rows not in {ffn, 2 * ffn}]
    alone = [rows for rows in outputs if rows < width and outputs.count(rows) > 1]
    together = [(rows - width) // 2 for rows in outputs if width < rows < 3 * width]
    return max(alone or together, default=width)


def _heads(widths: tuple[int, int], document: Mapping[str, Any], notes: list[str]) -> int:
    """Return how many heads share these widths, of queries and of keys."""
    given = next((document[name] for name in names_of("head_dim") if document.get(name)), None)
    if isinstance(given, int) and widths[0] % given == 0:
        return widths[0] // given
    both = math.gcd(*widths)
    usual = next(size for size in (128, 64, 32, 1) if both % size == 0)
    notes.append(f"it does not say how many heads it has: {usual} wide each, as usual")
    return widths[0] // usual


def _takes(weight: Sequence[int], hidden: int) -> bool:
    return len(weight) == 2 and weight[1] == hidden


def _has(document: Mapping[str, Any], key: str) -> bool:
    return any(document.get(name) is not None for name in names_of(key))
