"""What models of a type have that their `config.json` does not say: `families.tsv` and quirks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
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


def completed(shape: ModelShape, model_type: str, config: Config) -> ModelShape:
    """Return `shape` with what is special to its type."""
    family = family_of(model_type)
    per_block = _head_norms(shape, family) + _own_biases(shape, config)
    outside = 0
    if family.block_norm_biases:
        per_block += shape.norms * shape.hidden
        outside += shape.hidden
    shape = replace(
        shape,
        other_block_params=shape.other_block_params + per_block,
        other_params=shape.other_params + outside,
    )
    special = _SPECIAL.get(model_type)
    return special(shape, config) if special is not None else shape


def _head_norms(shape: ModelShape, family: Family) -> int:
    return 2 * shape.head_dim if family.head_norms else 0


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


def _bert(shape: ModelShape, config: Config) -> ModelShape:
    """BERT has a norm behind its embeddings, none behind its blocks, and a head of two layers."""
    segments = config.count("type_vocab_size") or 2
    head = shape.hidden * (shape.hidden + 3) + shape.vocab
    return replace(shape, other_params=segments * shape.hidden + head)


def _bloom(shape: ModelShape, _: Config) -> ModelShape:
    return replace(shape, other_params=2 * shape.hidden)


def _falcon(shape: ModelShape, config: Config) -> ModelShape:
    """Falcon 7B has one norm for both of its halves, Falcon 40B and 180B have two."""
    new = config.flag("new_decoder_architecture")
    norms = 2
    if new:
        norms = config.count("num_ln_in_parallel_attn") or 2
    elif config.flag("parallel_attn", default=True):
        norms = 1
    per_norm = shape.hidden
    shape = replace(shape, norms=norms, other_block_params=norms * per_norm)
    if not new and not config.flag("multi_query", default=True):
        shape = replace(shape, kv_heads=shape.heads)
    if not config.flag("bias"):
        return shape
    return replace(shape, biases=True, other_block_params=0, other_params=0)


def _llama4(shape: ModelShape, config: Config) -> ModelShape:
    """Every n-th block of Llama 4 has experts, one of them for all tokens; the others are wider."""
    step = config.whole("interleave_moe_layer_step") or 1
    return replace(
        shape,
        shared_ffn=shape.ffn,
        dense_layers=shape.layers - shape.layers // step,
        dense_ffn=config.whole("intermediate_size_mlp") or shape.ffn,
    )


def _mpt(shape: ModelShape, config: Config) -> ModelShape:
    """MPT counts positions by ALiBi unless told otherwise, and has biases only where told so."""
    attention = config.part("attn_config")
    alibi = attention.flag("alibi", default=True) or attention.flag("rope")
    learned = config.flag("learned_pos_emb", default=True) and not alibi
    return replace(
        shape,
        kv_heads=attention.whole("kv_n_heads") or shape.heads,
        biases=not config.flag("no_bias", default=True),
        learned_positions=(shape.max_seq or 0) if learned else 0,
    )


def _opt(shape: ModelShape, config: Config) -> ModelShape:
    """OPT 350M alone embeds in another width, and has no norm behind its last block."""
    width = config.whole("word_embed_proj_dim") or shape.hidden
    other = shape.vocab * (width - shape.hidden)
    if width != shape.hidden:
        other += 2 * shape.hidden * width
    if not config.flag("do_layer_norm_before", default=True):
        other -= 2 * shape.hidden
    return replace(shape, other_params=other)


def _head_bias(shape: ModelShape, _: Config) -> ModelShape:
    return replace(shape, other_params=shape.other_params + shape.vocab)


def _gptj(shape: ModelShape, _: Config) -> ModelShape:
    """GPT-J has biases in its MLP and its head, and none in attention."""
    return replace(
        shape,
        other_block_params=shape.other_block_params + shape.ffn + shape.hidden,
        other_params=shape.other_params + shape.vocab,
    )


def _olmo2(shape: ModelShape, _: Config) -> ModelShape:
    """OLMo 2 norms all queries and all keys of a token together."""
    norms = (shape.heads + shape.kv_heads) * shape.head_dim
    return replace(shape, other_block_params=shape.other_block_params + norms)


def _qwen(shape: ModelShape, _: Config) -> ModelShape:
    """The first Qwen gives the widths of both MLP inputs together."""
    return replace(shape, ffn=shape.ffn // 2)


def _shared_gate(shape: ModelShape, _: Config) -> ModelShape:
    """Give the shared MLP its gate; blocks that are dense have neither."""
    return replace(
        shape,
        other_block_params=shape.other_block_params + shape.hidden,
        other_params=-shape.dense_layers * shape.hidden,
    )


def _stablelm(shape: ModelShape, config: Config) -> ModelShape:
    parallel = config.flag("use_parallel_residual")
    return replace(
        shape,
        qkv_bias=config.flag("use_qkv_bias"),
        norms=1 if parallel else 2,
        other_block_params=shape.other_block_params - (shape.hidden if parallel else 0),
    )


def _starcoder2(shape: ModelShape, config: Config) -> ModelShape:
    if config.flag("use_bias", default=True):
        return shape
    return replace(
        shape,
        biases=False,
        other_block_params=shape.norms * shape.hidden,
        other_params=shape.hidden,
    )


def _gpt_oss(shape: ModelShape, _: Config) -> ModelShape:
    """Every linear layer of GPT OSS has a bias, and every head a sink; only its norms have none."""
    experts = shape.experts * (2 * shape.ffn + shape.hidden + 1)
    sinks = shape.heads
    # The bias of the output projection is counted where `attention_bias` is read.
    return replace(shape, other_block_params=shape.other_block_params + experts + sinks)


def _latent(shape: ModelShape, config: Config) -> ModelShape:
    """Attention by way of small matrices (MLA, arXiv:2405.04434).

    A head is wider in queries and keys than in values. `head_dim` is the mean of both: so the
    products of attention and the activations come out right, and what the four projections have
    less than the formulas say goes into `other_block_params`.
    """
    plain, rotary = config.needed("qk_nope_head_dim"), config.needed("qk_rope_head_dim")
    value, rank = config.needed("v_head_dim"), config.needed("kv_lora_rank")
    query_rank = config.count("q_lora_rank")
    hidden, heads = shape.hidden, shape.heads
    if query_rank:
        projections = query_rank * (hidden + 1 + heads * (plain + rotary))
    else:
        projections = hidden * heads * (plain + rotary)
    projections += hidden * (rank + rotary) + rank + rank * heads * (plain + value)
    projections += heads * value * hidden
    if config.flag("attention_bias"):
        projections += query_rank + rank + rotary + hidden
    shape = replace(
        shape,
        kv_heads=heads,
        head_dim=(plain + rotary + value) // 2,
        qkv_bias=False,
        other_block_params=0,
    )
    return replace(shape, other_block_params=projections - shape.attention_params)


def _deepseek_v3(shape: ModelShape, config: Config) -> ModelShape:
    shape = _latent(shape, config)
    notes = shape.assumed
    if config.count("num_nextn_predict_layers"):
        notes += ("the layer that predicts a further token (MTP) is left out",)
    # The router of each block adds one number per expert to its scores.
    corrections = (shape.layers - shape.dense_layers) * shape.experts
    return replace(shape, other_params=corrections, assumed=notes)


_SPECIAL = {
    "bert": _bert,
    "bloom": _bloom,
    "deepseek_v2": _latent,
    "deepseek_v3": _deepseek_v3,
    "falcon": _falcon,
    "gpt_oss": _gpt_oss,
    "gptj": _gptj,
    "kimi_k2": _deepseek_v3,
    "llama4_text": _llama4,
    "mpt": _mpt,
    "olmo2": _olmo2,
    "olmo3": _olmo2,
    "opt": _opt,
    "phi": _head_bias,
    "qwen": _qwen,
    "qwen2_moe": _shared_gate,
    "roberta": _bert,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
}
