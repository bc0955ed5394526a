"""Find the shape of a model: by its name, or by nothing but its size."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

from clusterkit.core.data import read_table
from clusterkit.core.errors import UserError, did_you_mean
from clusterkit.estimate.models.model_config import (
    A_FUNCTION,
    ENCODER_DECODER,
    OF_IMAGES,
    WITHOUT_ACTIVATIONS,
    llama_ffn,
    shape_of,
)
from clusterkit.estimate.shapes import ModelShape

_VERSIONS = frozenset(
    {"base", "chat", "deduped", "hf", "inst", "instruct", "it", "meta", "pt", "small", "text"}
    | {"v0.1", "4k", "8k", "128k", "17b", "16e", "128e"}
)
"""Words in the names of models that change nothing of their shape."""

_OTHER_KINDS = (
    (
        re.compile(r"(m|by|um|long|code)?t5|ul2|m?bart|pegasus|marian|opus|nllb|m2m100|whisper"),
        ENCODER_DECODER,
        A_FUNCTION,
    ),
    (
        re.compile(
            r"(vit|deit|beit|swin|dinov?|resnet|convnext|efficientnet|unet|dit)[0-9]*|diffusion|sdxl"
        ),
        OF_IMAGES,
        WITHOUT_ACTIVATIONS,
    ),
)
"""Words in the names of models that are none of text with one stack of blocks, by kind."""

_SCALES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_AMOUNT = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:e[+]?[0-9]{1,2})?) *([kmbgt]?)", re.IGNORECASE)
_SMALLEST, _LARGEST = 10**7, 10**13

_LLAMAS = tuple(
    (int(row["hidden"]), int(row["blocks"])) for row in read_table(__file__, "llamas.tsv")
)
_STEPS = ((2048, 128, 2), (8192, 512, 4), (65536 + 1, 1024, 4))
"""Below which width it goes in which steps, and the number of blocks in which: so that both can be
divided among GPUs."""
_GROUPED_FROM = 45 * 10**9
"""Llama has grouped-query attention, with a wider MLP in exchange, from 70B on (Llama 2)."""
_VOCAB = 32000


def preset_names() -> tuple[str, ...]:
    """Return the names of all models that are known, family by family."""
    return tuple(_presets())


def model_named(text: str) -> ModelShape:
    """Return the shape of a model by its name: `llama-3.1-8b`, `meta-llama/Llama-3.1-8B-Instruct`.

    A size alone, `7b`, names a Llama of that size, as `--params` does.

    Raises:
        UserError: no model of that name is known, or it is of a kind that is not estimated.
    """
    if amount(text) is not None:
        return model_of_params(text)
    presets = _presets()
    by_key = {_key(name): name for name in presets}
    name = by_key.get(_key(text)) or by_key.get(_key(_without_version(text)))
    if name is None:
        words = re.split(r"[-_ .]", text.strip().rsplit("/", 1)[-1].lower())
        for known, kind, hint in _OTHER_KINDS:
            if any(map(known.fullmatch, words)):
                raise UserError(f"{text!r} is {kind}", hint=hint)
        raise UserError(
            f"no model of the name {text!r} is known",
            hint=f"{_like(text)}\n  or give its config.json, or its size: --params 7B",
        )
    return shape_of(presets[name], name=name, source=f"the preset {name}")


def model_of_params(text: str) -> ModelShape:
    """Return the shape that a Llama of this size would have: `7B`, `1.3b`, `350M`, `7e9`.

    `exact_params` is the size that was asked for, and `assumed` tells the shape in words.

    Raises:
        UserError: it is not a number, or no size of a language model.
    """
    params = _size(text)
    return replace(llama_of(params), name=text.strip())


def llama_of(params: int) -> ModelShape:
    """Return the shape that a Llama with so many parameters would have; `assumed` tells it."""
    shape = min(_llamas(params), key=lambda shape: _distance(shape, params))
    grouped = f" over {shape.kv_heads} of keys and values" if shape.kv_heads < shape.heads else ""
    shown = (
        f"the shape of a Llama: {shape.layers} blocks of width {shape.hidden}, "
        f"{shape.heads} heads{grouped}, an MLP of {shape.ffn}, {shape.vocab} words; such a one has "
        f"{shape.params / 1e9:.3g}B parameters"
    )
    return replace(shape, exact_params=params, assumed=(shown,))


def _llamas(params: int) -> Iterator[ModelShape]:
    """Yield Llamas of all widths, each with the number of blocks that comes nearest to `params`."""
    low = 128
    for high, step, blocks in _STEPS:
        for hidden in range(low, high, step):
            shape = _llama(hidden, grouped=params >= _GROUPED_FROM)
            outside = shape.params - shape.layers * shape.block_params
            layers = (params - outside) / shape.block_params
            yield replace(shape, layers=max(blocks, round(layers / blocks) * blocks))
        low = high


def _llama(hidden: int, *, grouped: bool) -> ModelShape:
    head_dim = 128 if hidden >= 2048 else 64
    heads = hidden // head_dim
    few = grouped and heads % 8 == 0
    return ModelShape(
        name="",
        layers=1,
        hidden=hidden,
        heads=heads,
        kv_heads=8 if few else heads,
        head_dim=head_dim,
        ffn=hidden * 7 // 2 if few else llama_ffn(hidden),
        vocab=_VOCAB,
    )


def _distance(shape: ModelShape, params: int) -> float:
    """Return how far a shape is from the size that is wanted, and from the proportions of Llama."""
    size, depth = shape.params / params, shape.layers / _usual_blocks(shape.hidden)
    return 1.5 * abs(math.log(size)) + abs(math.log(depth))


def _usual_blocks(hidden: int) -> float:
    """Return how many blocks go with a width: on the line between the two nearest Llamas."""
    for (low, few), (high, many) in pairwise(_LLAMAS):
        if hidden <= high:
            return max(2, few + (many - few) * (hidden - low) / (high - low))
    return _LLAMAS[-1][1]


def amount(text: str) -> float | None:
    """Return the number that `7B`, `1.3b`, `350M` or `2_000` stands for; None where it is none."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        return None
    number, scale = found.groups()
    return float(re.sub("[_,]", "", number)) * _SCALES[scale.lower()]


def _size(text: str) -> int:
    number = amount(text)
    hint = "give it as 350M, 1.3B, 7B, 1T or 7000000000"
    if number is None:
        raise UserError(f"{text!r} is not a number of parameters", hint=hint)
    params = round(number)
    if not _SMALLEST <= params <= _LARGEST:
        what = "too few" if params < _SMALLEST else "too many"
        raise UserError(f"{text.strip()} parameters are {what} for a language model", hint=hint)
    return params


@cache
def _presets() -> Mapping[str, Mapping[str, Any]]:
    """Return the configuration of each model by its name."""
    presets = {}
    for row in read_table(__file__, "named.tsv"):
        name, model_type = row.pop("name"), row.pop("model_type")
        del row["published"]  # the tests count what the formulas say against it
        others = dict(cell.split("=", 1) for cell in row.pop("others").split())
        config = {key: json.loads(value) for key, value in (row | others).items()}
        presets[name] = {"model_type": model_type, **config}
    return presets


def _like(text: str) -> str:
    """Return the sizes of the family that is named, the name that may be meant, or families."""
    sizes = [name for name in _presets() if _key(name.rpartition("-")[0]) == _key(text)]
    if sizes:
        return f"which size? {', '.join(sizes)}"
    near = did_you_mean(text.rsplit("/", 1)[-1], _presets())
    families = dict.fromkeys(re.sub(r"-([0-9]|base|large).*", "", name) for name in _presets())
    return near or f"known are sizes of {', '.join(families)}"


def _without_version(text: str) -> str:
    """Return `text` without the words that name a version of the same shape."""
    parts = re.split(r"[-_ ]", text.strip().rsplit("/", 1)[-1])
    return "-".join(part for part in parts if part.lower() not in _VERSIONS)


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", text.strip().rsplit("/", 1)[-1].lower())
