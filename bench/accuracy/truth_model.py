"""The model of a published row: by its configuration, else the known one of that name."""

from __future__ import annotations

import re
from dataclasses import replace

from clusterkit.core.errors import UserError
from clusterkit.estimate.models.named import model_named, model_of_params
from clusterkit.estimate.shapes import ModelShape

from .notation import pairs_of, whole_number
from .truth_table import Row

_ROUNDED = 3
"""Digits of a number of parameters that is the name of a model rather than a count."""


class TooLittle(Exception):  # noqa: N818 - a state of a row, not a mistake of anyone
    """Raised where a row does not say what an estimate needs."""


def model_of(row: Row) -> ModelShape:
    """Return the model of a row: by its configuration, else the known one of its name."""
    pairs = pairs_of(row.config)
    hidden = whole_number(pairs.get("h"))
    if hidden is None:
        return _named_model(row)
    layers, vocab = whole_number(pairs.get("l")), whole_number(pairs.get("v"))
    assumed = []
    if vocab is None:
        vocab = 50_304
        assumed.append("the vocabulary of GPT-2")
    heads = whole_number(pairs.get("a"))
    if heads is None:
        heads = max(1, hidden // 128)
        assumed.append("heads of 128")
    gated = pairs.get("glu") == "1"
    ffn = _width(pairs.get("ffn", "4h"), hidden)
    if layers is None:
        layers = _layers(row.params, hidden, ffn, vocab)
        assumed.append(f"{layers} layers, by the number of parameters")
    shape = ModelShape(
        name=row.model,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=whole_number(pairs.get("kv")) or heads,
        head_dim=hidden // heads,
        ffn=ffn,
        vocab=vocab,
        tied=pairs.get("tied") == "1",
        gated=gated,
        biases=not gated,
        learned_positions=whole_number(pairs.get("learned_pos")) or 0,
        assumed=tuple(assumed),
    )
    return replace(shape, exact_params=_exact(row.params))


def _exact(params: float | None) -> int | None:
    """Return the published number, unless it is the rounded one in the model's name."""
    if params is None:
        return None
    digits = f"{params:.0f}".rstrip("0")
    return int(params) if len(digits) > _ROUNDED else None


def _width(text: str, hidden: int) -> int:
    """Return the width of the MLP: a number, or `4h`."""
    if text.endswith("h"):
        try:
            return round(float(text[:-1] or "1") * hidden)
        except ValueError:
            return 4 * hidden
    return whole_number(text) or 4 * hidden


def _layers(params: float | None, hidden: int, ffn: int, vocab: int) -> int:
    if not params:
        raise TooLittle("no number of layers")
    return max(1, round((params - vocab * hidden) / (4 * hidden**2 + 2 * hidden * ffn)))


def _named_model(row: Row) -> ModelShape:
    try:
        return model_named(re.sub(r"[\s_]+", "-", row.model))
    except UserError:
        pass
    if row.kind.strip().lower() == "analytic" and row.params and "states only" in row.basis:
        return replace(model_of_params(f"{row.params / 1e9:.6g}B"), exact_params=int(row.params))
    raise TooLittle("no configuration of the model (hidden size, layers)")
