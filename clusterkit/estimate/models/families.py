"""What the models of a type have that their `config.json` does not say.

Read off the implementations in transformers 5 (`models/*/modeling_*.py`), and checked against
them: each was built on the meta device, and its parameters counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


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
    """What transformers takes where the configuration does not say it: models for pictures and text
    give of their text part only what differs from this."""


_LLAMA = Family()
_LLAMA_7B = (
    ("hidden_size", 4096),
    ("num_hidden_layers", 32),
    ("num_attention_heads", 32),
    ("intermediate_size", 11008),
    ("vocab_size", 32000),
)
_MISTRAL_7B = (
    *_LLAMA_7B[:3],
    ("num_key_value_heads", 8),
    ("intermediate_size", 14336),
    ("vocab_size", 32000),
)
_GEMMA_3 = (
    ("hidden_size", 2304),
    ("num_hidden_layers", 26),
    ("num_attention_heads", 8),
    ("num_key_value_heads", 4),
    ("head_dim", 256),
    ("intermediate_size", 9216),
    ("vocab_size", 262208),
)
_GPT = Family(gated=False, biases=True, tied=True)

FAMILIES = {
    "bert": replace(_GPT, positions=0),
    "bloom": _GPT,
    "cohere": Family(tied=True, norms=1),
    "deepseek_v2": _LLAMA,
    "deepseek_v3": _LLAMA,
    "falcon": Family(gated=False, tied=True, one_kv_head=True, block_norm_biases=True),
    "gemma": Family(tied=True),
    "gemma2": Family(tied=True, norms=4),
    "gemma3_text": Family(tied=True, norms=4, head_norms=True, defaults=_GEMMA_3),
    "gpt2": replace(_GPT, positions=0),
    "gpt_bigcode": replace(_GPT, positions=0, one_kv_head=True),
    "gpt_neox": replace(_GPT, tied=False),
    "gpt_oss": Family(qkv_bias=True),
    "gptj": Family(gated=False, norms=1, block_norm_biases=True),
    "granite": _LLAMA,
    "kimi_k2": _LLAMA,
    "internlm2": _LLAMA,
    "llama": Family(defaults=_LLAMA_7B),
    "llama4_text": _LLAMA,
    "ministral": _LLAMA,
    "mistral": Family(defaults=_MISTRAL_7B),
    "mixtral": _LLAMA,
    "mpt": Family(gated=False, tied=True),
    "nemotron": Family(gated=False, block_norm_biases=True),
    "olmo": Family(norms=0),
    "olmo2": _LLAMA,
    "olmo3": _LLAMA,
    "opt": replace(_GPT, positions=2),
    "phi": replace(_GPT, tied=False, norms=1),
    "phi3": _LLAMA,
    "qwen": Family(qkv_bias=True),
    "qwen2": Family(qkv_bias=True),
    "qwen2_moe": Family(qkv_bias=True),
    "qwen3": Family(head_norms=True),
    "qwen3_moe": Family(head_norms=True),
    "roberta": replace(_GPT, positions=0),
    "smollm3": Family(tied=True),
    "stablelm": Family(block_norm_biases=True),
    "starcoder2": Family(gated=False, biases=True, tied=True),
}


def family_of(model_type: str) -> Family:
    """Return the constants of this type; those of a Llama for a type that is not known."""
    return FAMILIES.get(model_type, _LLAMA)
