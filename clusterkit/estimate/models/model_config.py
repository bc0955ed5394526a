"""The shape that a `config.json` describes, as transformers and those who imitate it write it.

The many names of one thing stand in config_keys.tsv, what models of a type have that the file does
not say in families.tsv and formulas.tsv.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
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


_VOCAB = 32000
_LARGEST_FILE = 8 << 20


def model_of_config(path: Path) -> ModelShape:
    """Return the shape that `path` describes: a `config.json`, or the folder that it lies in.

    Raises:
        UserError: there is no such file, it holds no JSON object, or lacks what nothing can
            stand in for; all of that at once.
    """
    path = path / "config.json" if path.is_dir() else path
    document = _read(path)
    name = document.get("_name_or_path") or document.get("name")
    usual = path.name == "config.json" and path.absolute().parent.name
    shown = name if isinstance(name, str) and name else usual or path.stem
    return shape_of(document, name=str(shown).rsplit("/", 1)[-1], source=str(path))


ENCODER_DECODER = "an encoder with a decoder"
A_FUNCTION = "name a function that returns the model: `--model package.module:factory`"
OF_IMAGES = "a model of images"
WITHOUT_ACTIVATIONS = (
    "estimates are of language models; of a function that returns the model (`--model "
    "package.module:factory`), weights and optimizer states are right, and activations are not"
)
_OF_IMAGES = ("image_size", "patch_size", "sample_size", "num_channels", "in_channels")
"""Keys of vision models of transformers (ViT, Swin, ResNet) and of diffusers."""


def shape_of(document: Mapping[str, Any], *, name: str, source: str) -> ModelShape:
    """Return the shape that a configuration describes; `source` says in errors where it is from.

    Raises:
        UserError: values are missing or cannot be.
    """
    notes: list[str] = []
    inner = document.get("text_config")
    nested = isinstance(inner, Mapping)
    if isinstance(inner, Mapping):
        notes.append("only the part for text is counted (text_config)")
        # Whether the head is tied, transformers asks the outer configuration.
        tied = document.get("tie_word_embeddings", inner.get("tie_word_embeddings"))
        document = {**inner, "tie_word_embeddings": tied}
    model_type = str(document.get("model_type") or "").replace("-", "_").lower()
    family = family_of(model_type)
    document = {**document, **_defaults(document, family, nested=nested, notes=notes)}
    config = Config(document, source=source, family=family, notes=notes)
    if model_type not in FAMILIES:
        known = f"model type {model_type!r} is not known" if model_type else "no model_type"
        notes.append(f"{known}: read as a Llama, with whatever of it the file says")
    if document.get("is_encoder_decoder") is True:
        config.refuse(
            f"{ENCODER_DECODER} is described",
            A_FUNCTION,
            key="is_encoder_decoder",
        )
    picture = next((key for key in _OF_IMAGES if document.get(key) is not None), None)
    if picture is not None and not nested and model_type not in FAMILIES:
        config.refuse(
            f"{OF_IMAGES}, without tokens of text, is described",
            WITHOUT_ACTIVATIONS,
            key=picture,
        )
    shape = completed(_plain(config, name=name), model_type, config)
    config.check()
    return shape


def _defaults(
    document: Mapping[str, Any], family: Family, *, nested: bool, notes: list[str]
) -> Mapping[str, int]:
    """Return what the type stands for where the document does not say it; noted as assumed.

    Width and number of blocks are not assumed of a whole configuration: it would be any model's.
    """
    needed = () if nested else ("hidden_size", "num_hidden_layers")
    missing = {
        name: value
        for name, value in family.defaults
        if name not in needed and all(document.get(other) is None for other in names_of(name))
    }
    notes += [f"{name} is not given: {value}" for name, value in missing.items()]
    return missing


def _plain(config: Config, *, name: str) -> ModelShape:
    """Return what the usual keys say."""
    family = config.family
    hidden = config.needed("hidden_size")
    layers = config.needed("num_hidden_layers", most=MOST_LAYERS)
    heads = config.whole_or("num_attention_heads", max(1, hidden // 128))
    experts = config.count("num_experts")
    ffn = _ffn(config, hidden)
    positions = config.whole("max_position_embeddings")
    learned = family.positions
    dense = _dense_layers(config, layers) if experts else 0
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(config, heads),
        head_dim=_head_dim(config, hidden, heads),
        ffn=(experts and config.whole("moe_intermediate_size", "expert_intermediate_size")) or ffn,
        vocab=config.whole_or("vocab_size", _VOCAB),
        tied=config.flag("tie_word_embeddings", default=family.tied),
        gated=family.gated,
        biases=family.biases,
        qkv_bias=family.qkv_bias,
        norms=family.norms,
        learned_positions=(positions or 1024) + learned if learned is not None else 0,
        experts=experts,
        active_experts=_active(config, experts),
        shared_ffn=_shared_ffn(config) if experts else 0,
        dense_layers=dense,
        dense_ffn=ffn if dense else 0,
        max_seq=positions,
        assumed=tuple(config.notes),
    )


def _kv_heads(config: Config, heads: int) -> int:
    if config.family.one_kv_head and config.flag("multi_query", default=True):
        new = config.flag("new_decoder_architecture")
        return config.whole("num_key_value_heads") or heads if new else 1
    kv_heads = config.whole("num_key_value_heads") or heads
    if heads % kv_heads:
        config.refuse(
            f"{heads} heads cannot share {kv_heads} of keys and values",
            "num_key_value_heads has to divide num_attention_heads",
            key="num_key_value_heads",
        )
    return kv_heads


def _head_dim(config: Config, hidden: int, heads: int) -> int:
    given = config.whole("head_dim")
    latent = config.value("kv_lora_rank") is not None
    if given is None and hidden % heads and not latent and config.value("hidden_size") is not None:
        config.refuse(
            f"{heads} heads do not divide a width of {hidden}",
            "give head_dim, or another number of heads",
            key="num_attention_heads",
        )
    return given or max(1, hidden // heads)


def _ffn(config: Config, hidden: int) -> int:
    """Return the width of the MLP: where it is not given, that of GPT (4 h) or Llama (8/3 h)."""
    given = config.whole("intermediate_size")
    if given is not None:
        return given
    ratio = config.value("expansion_ratio", "mlp_ratio", "ffn_ratio")
    if ratio is not None:
        return int(hidden * _ratio(ratio)) or 1
    if not config.family.gated:
        return 4 * hidden
    if config.value("moe_intermediate_size") is not None:
        return config.whole("moe_intermediate_size") or 1
    step = config.whole("multiple_of")
    if step is None:
        return config.whole_or("intermediate_size", llama_ffn(hidden))
    factor = config.value("ffn_dim_multiplier")
    return llama_ffn(hidden, step=step, factor=_ratio(factor))


def llama_ffn(hidden: int, *, step: int = 256, factor: float = 1.0) -> int:
    """Return the width of a Llama's MLP as Meta's code computes it: 8/3 h, up to the next step."""
    return -(-int(factor * (8 * hidden // 3)) // step) * step


def _ratio(found: tuple[str, Any] | None) -> float:
    """Return a factor from the configuration; 1 where it makes no sense."""
    value = None if found is None else found[1]
    return float(value) if isinstance(value, int | float) and 0 < value < 1000 else 1.0


def _shared_ffn(config: Config) -> int:
    shared = config.count("n_shared_experts") * config.count("moe_intermediate_size")
    return config.count("shared_expert_intermediate_size") or shared


def _active(config: Config, experts: int) -> int:
    active = config.whole_or("num_experts_per_tok", min(2, experts)) if experts else 0
    if active > experts:
        config.refuse(
            f"a token cannot see {active} of {experts} experts",
            f"set it to {experts} at most",
            key="num_experts_per_tok",
        )
    return active


def _dense_layers(config: Config, layers: int) -> int:
    """Return how many blocks have a dense MLP: the first, those listed, all but each nth."""
    first = config.count("first_k_dense_replace")
    listed = config.value("mlp_only_layers")
    step = config.whole("decoder_sparse_step") or 1
    names = set(range(first))
    if listed is not None and isinstance(listed[1], list):
        names |= {index for index in listed[1] if isinstance(index, int) and index < layers}
    names |= {index for index in range(layers) if (index + 1) % step}
    return len(names)


def _read(path: Path) -> Mapping[str, Any]:
    hint = "give the config.json of a model, as its repository on a model hub has it"
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise UserError(f"{path} is not a configuration: it is too large", hint=hint)
        document = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(f"there is no {path}", hint=hint) from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}", hint=hint) from error
    if not isinstance(document, dict):
        raise UserError(f"{path} holds no JSON object", hint=hint)
    return document
