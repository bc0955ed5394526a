"""Shapes of models: by name, by size, from a config.json; their parameters counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.core.data import read_table
from clusterkit.core.errors import UserError
from clusterkit.estimate.models import named
from clusterkit.estimate.models.model_config import model_of_config, shape_of
from clusterkit.estimate.models.named import model_named, model_of_params, preset_names
from clusterkit.estimate.shapes import ModelShape

PUBLISHED = {row["name"]: row["published"] for row in read_table(named.__file__, "named.tsv")}
"""How many parameters the weights of a preset have; `-` where only a rounded figure is known."""
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 640,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
}
WIDE = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 1000}
GPT = {"n_embd": 256, "n_layer": 3, "n_head": 8, "vocab_size": 1000, "n_positions": 128}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
LATENT = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}
LLAMA4 = {
    **LLAMA,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "intermediate_size": 320,
    "intermediate_size_mlp": 640,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
}
OPT = {**WIDE, "ffn_dim": 640, "max_position_embeddings": 128}

COUNTED = [
    ("llama", LLAMA, 2_479_872),
    (
        "llama",
        {**LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        2_230_400,
    ),
    ("mistral", {**LLAMA, "head_dim": 48}, 2_725_632),
    ("mixtral", {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2}, 6_906_624),
    ("qwen2", LLAMA, 2_481_024),
    ("qwen2_moe", {**LLAMA, **EXPERTS, "shared_expert_intermediate_size": 320}, 2_632_320),
    (
        "qwen2_moe",
        {
            **LLAMA,
            **EXPERTS,
            "shared_expert_intermediate_size": 320,
            "decoder_sparse_step": 2,
        },
        2_531_456,
    ),
    ("qwen3", {**LLAMA, "head_dim": 64}, 2_971_776),
    ("qwen3_moe", {**LLAMA, **EXPERTS, "head_dim": 64, "mlp_only_layers": [0]}, 2_580_608),
    ("gpt2", GPT, 2_658_560),
    ("gptj", {**GPT, "n_head": 4}, 2_878_184),
    ("gpt_bigcode", GPT, 2_313_152),
    ("gpt_neox", {**LLAMA, "num_key_value_heads": None}, 2_290_816),
    ("phi", {**LLAMA, "num_key_value_heads": None}, 2_290_280),
    ("phi3", LLAMA, 2_479_872),
    ("gemma", {**LLAMA, "head_dim": 64}, 2_715_392),
    ("gemma2", {**LLAMA, "head_dim": 64}, 2_716_928),
    ("gemma3_text", {**LLAMA, "head_dim": 64}, 2_717_312),
    ("falcon", WIDE, 2_273_280),
    ("falcon", {**WIDE, "new_decoder_architecture": True, "num_kv_heads": 2}, 2_323_968),
    (
        "falcon",
        {**WIDE, "parallel_attn": False, "bias": True, "multi_query": False, "alibi": True},
        2_625_792,
    ),
    ("llama4_text", LLAMA4, 6_088_960),
    ("llama4_text", {**LLAMA4, "interleave_moe_layer_step": 2}, 4_612_352),
    ("olmo", {**LLAMA, "num_key_value_heads": None}, 2_772_992),
    ("olmo2", LLAMA, 2_480_832),
    ("opt", OPT, 2_068_096),
    ("opt", {**OPT, "word_embed_proj_dim": 128, "do_layer_norm_before": False}, 2_005_120),
    ("mpt", {"d_model": 256, "n_heads": 8, "n_layers": 3, "vocab_size": 1000}, 2_617_088),
    ("bloom", {"hidden_size": 256, "n_head": 8, "n_layer": 3, "vocab_size": 1000}, 2_626_304),
    ("cohere", LLAMA, 2_223_104),
    ("nemotron", LLAMA, 1_990_144),
    ("stablelm", {**LLAMA, "use_qkv_bias": True, "use_parallel_residual": True}, 2_481_280),
    ("starcoder2", LLAMA, 1_738_752),
    ("starcoder2", {**LLAMA, "use_bias": False}, 1_734_144),
    (
        "gpt_oss",
        {
            **LLAMA,
            "head_dim": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "attention_bias": True,
        },
        6_927_012,
    ),
    ("deepseek_v2", {**LLAMA, **LATENT}, 3_061_600),
    # 16 more than transformers 5 counts: there the corrections of the router are a buffer.
    ("deepseek_v3", {**LLAMA, **LATENT, "q_lora_rank": 48}, 2_858_992 + 16),
]
"""Configurations, and the parameters of the model that transformers 5.23 made of them on the meta
device (`AutoModelForCausalLM.from_config`)."""


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_has_as_many_parameters_as_its_weights_were_published_with(name: str) -> None:
    shape, published = model_named(name), PUBLISHED[name]
    assert shape.exact_params is None, "the formulas have to say it, not a figure that is copied"
    if published != "-":
        assert shape.params == int(published)
    assert shape.active_params <= shape.params
    assert shape.max_seq is not None


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt3-2.7b", 2.65),
        ("gpt3-6.7b", 6.66),
        ("gpt3-175b", 174.6),
        ("mt-nlg-530b", 529.6),
        ("nemotron-4-340b", 341.0),
        ("llama-4-scout", 107.8),
    ],
)
def test_presets_with_a_rounded_figure_come_near_it(name: str, billions: float) -> None:
    assert PUBLISHED[name] == "-"
    assert model_named(name).params / 1e9 == pytest.approx(billions, rel=0.001)


@pytest.mark.parametrize(
    ("name", "active"),
    # As their reports say: Mixtral (arXiv:2401.04088) 12.9, DeepSeek-V3 (2412.19437) 37, Qwen 3
    # (2505.09388) 3.3 and 22, GPT OSS (2508.10925, without embedding) 5.1.
    [("mixtral-8x7b", 12.9), ("deepseek-v3", 37.6), ("qwen3-30b-a3b", 3.34), ("gpt-oss-120b", 5.7)],
)
def test_the_parameters_that_one_token_meets(name: str, active: float) -> None:
    assert model_named(name).active_params / 1e9 == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Llama-2-7b-hf", "llama-2-7b"),
        ("GPT-2", "gpt2"),
        ("gpt-3-175B", "gpt3-175b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("llama3.1:8b", "llama-3.1-8b"),
        ("Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("LLAMA3.1_405B", "llama-3.1-405b"),
        ("Phi-3-mini-4k-instruct", "phi-3-mini"),
        (" qwen2.5-7b ", "qwen2.5-7b"),
    ],
)
def test_names_are_known_as_a_hub_writes_them(asked: str, name: str) -> None:
    assert model_named(asked).name == name


def test_an_unknown_name_says_what_is_near_it_and_what_else_can_be_given() -> None:
    with pytest.raises(
        UserError, match=r"(?s)did you mean 'llama-3-8b'.*config\.json.*--params 7B"
    ):
        model_named("lama-3-8b")
    with pytest.raises(UserError, match=r"which size\? llama-3-8b, llama-3-70b\n  or"):
        model_named("llama3")
    with pytest.raises(UserError, match=r"known are sizes of bert, .*mixtral"):
        model_named("zzz")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("google/flan-t5-xl", "'google/flan-t5-xl' is an encoder with a decoder"),
        ("bart-large", "an encoder with a decoder"),
        ("openai/whisper-large-v3", "an encoder with a decoder"),
        ("google/vit-base-patch16-224", "a model of images"),
        ("resnet50", "a model of images"),
        ("stable-diffusion-xl", "a model of images"),
    ],
)
def test_models_of_another_kind_are_refused_by_name_and_not_taken_for_one_near(
    asked: str, said: str
) -> None:
    with pytest.raises(UserError) as caught:
        model_named(asked)
    assert said in str(caught.value)
    assert "package.module:factory" in str(caught.value)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "params"),
    [
        ("7B", 7_000_000_000),
        ("1.3b", 1_300_000_000),
        ("350M", 350_000_000),
        ("1T", 10**12),
        ("7e9", 7_000_000_000),
        ("7_000_000_000", 7_000_000_000),
        ("6,738,415,616", 6_738_415_616),
    ],
)
def test_a_size_becomes_a_llama_of_just_this_size(asked: str, params: int) -> None:
    shape = model_of_params(asked)
    assert shape == model_named(asked)
    assert shape.params == shape.exact_params == params
    assert f"{shape.layers} blocks of width {shape.hidden}" in shape.assumed[0]


@pytest.mark.parametrize(
    ("asked", "layers", "hidden", "kv_heads", "ffn"),
    [
        ("7B", 32, 4096, 32, 11008),
        ("13B", 40, 5120, 40, 13824),
        ("33B", 60, 6656, 52, 17920),
        ("70B", 80, 8192, 8, 28672),
    ],
)
def test_the_sizes_of_llama_become_the_shapes_of_llama(
    asked: str, layers: int, hidden: int, kv_heads: int, ffn: int
) -> None:
    shape = model_of_params(asked)
    assert (shape.layers, shape.hidden, shape.kv_heads, shape.ffn) == (
        layers,
        hidden,
        kv_heads,
        ffn,
    )


@given(st.integers(min_value=5 * 10**7, max_value=10**13))
def test_the_shape_for_a_size_has_about_this_size_and_can_be_divided(params: int) -> None:
    shape = model_of_params(str(params))
    by_shape = replace(shape, exact_params=None).params
    assert by_shape == pytest.approx(params, rel=0.15)
    assert shape.hidden == shape.heads * shape.head_dim
    assert shape.heads % shape.kv_heads == 0
    assert shape.layers % 2 == 0


@pytest.mark.parametrize("bad", ["0", "-7B", "seven", "", "1e30", "7Q", "nan", "7B B", "1M", "inf"])
def test_what_is_no_size_is_refused_with_an_example(bad: str) -> None:
    with pytest.raises(UserError, match=r"350M, 1\.3B, 7B"):
        model_of_params(bad)


@pytest.mark.parametrize(("model_type", "document", "params"), COUNTED)
def test_a_configuration_counts_as_the_model_that_is_built_of_it(
    model_type: str, document: dict[str, Any], params: int
) -> None:
    shape = shape_of({**document, "model_type": model_type}, name="x", source="config.json")
    assert shape.params == params


def test_a_folder_stands_for_the_config_json_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert model_of_config(folder) == model_of_config(folder / "config.json")
    assert model_of_config(folder).name == "my-model"
    assert model_of_config(folder).assumed == ()


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "positions", "params"),
    # As llm-foundry counted them in its table of throughput (scripts/train/benchmarking).
    [
        (32, 4096, 32, 2048, 6_658_859_008),
        (32, 4096, 32, 65536, 6_918_905_856),
        (80, 8192, 64, 2048, 64_862_437_376),
        (12, 768, 12, 512, 124_131_840),
    ],
)
def test_an_mpt_may_learn_its_positions_and_have_biases(
    layers: int, hidden: int, heads: int, positions: int, params: int
) -> None:
    document = {
        "model_type": "mpt",
        "d_model": hidden,
        "n_layers": layers,
        "n_heads": heads,
        "vocab_size": 50368,
        "max_seq_len": positions,
        "no_bias": False,
        "attn_config": {"alibi": False},
    }
    assert shape_of(document, name="mpt", source="config.json").params == params


def test_the_params_json_of_meta_gives_the_mlp_by_steps_and_a_factor() -> None:
    document = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256}
    steps = {"ffn_dim_multiplier": 1.3, "multiple_of": 1024}
    shape = shape_of({**document, **steps}, name="x", source="params.json")
    assert (shape.ffn, shape.params) == (14336, 8_030_261_248)


def test_the_text_part_of_a_model_with_pictures_is_counted_and_said(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    inner = {**LLAMA, "model_type": "gemma3_text", "head_dim": 64}
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": inner}))
    shape = model_of_config(path)
    assert shape.params == 2_717_312
    assert "only the part for text" in shape.assumed[0]


def test_a_part_for_text_that_says_only_what_differs_is_completed_and_said() -> None:
    """So does the config.json of Gemma 3 4B."""
    inner = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
    }
    shape = shape_of({"model_type": "gemma3", "text_config": inner}, name="x", source="c.json")
    assert shape.params == int(PUBLISHED["gemma-3-4b"])
    assert shape.assumed[1:] == (
        "num_attention_heads is not given: 8",
        "num_key_value_heads is not given: 4",
        "head_dim is not given: 256",
        "vocab_size is not given: 262208",
    )


def test_an_unknown_type_is_read_as_a_llama_and_says_so() -> None:
    shape = shape_of({**LLAMA, "model_type": "brandnew"}, name="x", source="config.json")
    assert shape.params == 2_479_872
    assert shape.assumed == (
        "model type 'brandnew' is not known: read as a Llama, with whatever of it the file says",
    )


def test_what_is_missing_is_assumed_and_said() -> None:
    document = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32}
    shape = shape_of(document, name="x", source="config.json")
    assert shape.assumed == (
        "num_attention_heads is not given: 32",
        "intermediate_size is not given: 11008",
        "vocab_size is not given: 32000",
    )
    assert shape.params == 6_738_415_616


def test_all_that_nothing_can_stand_in_for_is_named_at_once() -> None:
    with pytest.raises(UserError) as caught:
        shape_of({"model_type": "llama", "vocab_size": -3}, name="x", source="a/config.json")
    assert [problem.message for problem in caught.value.problems] == [
        "a/config.json has no hidden_size",
        "a/config.json has no num_hidden_layers",
        "vocab_size is -3 in a/config.json",
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": "256"}, "hidden_size is '256'"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_hidden_layers": 1.5}, "num_hidden_layers is 1.5"),
        ({"num_hidden_layers": 10**12}, "has to be a whole number"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "7 heads do not divide a width"),
        ({"num_key_value_heads": 3}, "8 heads cannot share 3"),
        ({"tie_word_embeddings": "no"}, "has to be true or false"),
        ({"is_encoder_decoder": True}, "an encoder with a decoder"),
        ({"model_type": "vit", "patch_size": 16}, r"a model of images.*\(patch_size\)"),
        ({"hidden_size": float("nan")}, "hidden_size is nan"),
        ({"hidden_size": [256]}, r"hidden_size is \[256\]"),
    ],
)
def test_values_that_cannot_be_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        shape_of({**LLAMA, **change}, name="x", source="config.json")


def test_files_that_are_no_configuration_say_what_to_give_instead(tmp_path: Path) -> None:
    bad = tmp_path / "config.json"
    with pytest.raises(UserError, match=r"there is no .*config\.json\n.*of a model"):
        model_of_config(tmp_path)
    for text, says in [
        ("{", "is not valid JSON"),
        ("[1]", "no JSON object"),
        ("\x00", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
    ]:
        bad.write_text(text)
        with pytest.raises(UserError, match=says):
            model_of_config(bad)
    bad.write_bytes(b"\xff\xfe{")
    with pytest.raises(UserError, match="is not valid JSON"):
        model_of_config(bad)


_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@given(
    st.dictionaries(
        st.sampled_from(
            [*LLAMA, *LATENT, *EXPERTS, "text_config", "head_dim", "mlp_only_layers", "attn_config"]
        ),
        _VALUES | st.lists(_VALUES, max_size=3) | st.integers(min_value=1, max_value=300),
    ),
    st.sampled_from(sorted({name for name, _, _ in COUNTED})),
)
def test_any_object_is_a_shape_or_an_error(document: dict[str, Any], model_type: str) -> None:
    try:
        shape = shape_of({**document, "model_type": model_type}, name="x", source="c.json")
    except UserError:
        return
    assert isinstance(shape, ModelShape)
    assert isinstance(shape.params, int)
