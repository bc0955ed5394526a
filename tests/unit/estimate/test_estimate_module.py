"""Modules by import path: counted on the meta device, traced with fake tensors."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import pytest

from clusterkit.core.commands import Answer
from clusterkit.core.data import data_dir
from clusterkit.core.errors import UserError
from clusterkit.estimate.models import module
from clusterkit.estimate.models.module import Parts, model_of_module, shape_of_parts
from clusterkit.estimate.models.named import model_named
from clusterkit.estimate.shapes import ModelShape
from tests.helpers.loading import load
from tests.helpers.needs import require
from tests.helpers.paths import ROOT

require("torch")
MODULES = "tests.helpers.estimate_modules"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """The program that runs in the subprocess, to try its parts in this one."""
    return load(data_dir("templates/programs/estimate") / "trace_module.py")


def traced(program: ModuleType, name: str, *, seq: int = 512, micro_batch: int = 2) -> ModelShape:
    """Return what `model_of_module` would, without a process of its own."""
    spec = f"{MODULES}:{name}"
    built = program.build(program.find(spec))
    blocks = program.find_blocks(built)
    counted = program.count(built, blocks)
    return module._model(
        name=spec, counted=counted, traced=program.trace(built, blocks, (micro_batch, seq))
    )


def untraced(model: ModelShape) -> str:
    return next((note for note in model.assumed if "could not be traced" in note), "")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_a_llama_of_70b_is_counted_and_traced_in_a_process_of_its_own() -> None:
    model = model_of_module(f"{MODULES}:llama_3_70b", seq=4096, micro_batch=2)
    published = model_named("llama-3-70b")
    assert model.params == published.params
    assert (model.layers, model.block_params) == (80, published.block_params)
    assert untraced(model) == ""
    # Copies of the residual stream in bf16: q, k, v, out, two norms, three of the MLP ...
    assert model.saved_bytes_per_token is not None
    assert model.saved_bytes_per_token / 8192 == pytest.approx(52.5, abs=0.2)
    assert replace(model, name="", saved_bytes_per_token=None) == replace(
        published, name="", max_seq=None, exact_params=published.params
    )


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt2", "mixtral-8x7b"])
def test_modules_have_as_many_parameters_as_the_formulas_say(
    program: ModuleType, name: str
) -> None:
    built = program.build(program.find(f"{MODULES}:{name.translate(str.maketrans('-', '_'))}"))
    assert program.numel(built.parameters()) == model_named(name).params


def test_a_block_of_llama_keeps_53_bytes_per_token_and_width(program: ModuleType) -> None:
    """Llama 3.1 8B: 53.0 traced and confirmed on GPUs by how memory grows with the sequence."""
    short, long = (traced(program, "llama_3_8b", seq=seq, micro_batch=1) for seq in (2048, 8192))
    assert short.saved_bytes_per_token is not None
    assert short.saved_bytes_per_token / 4096 == pytest.approx(53.0, abs=0.1)
    assert long.saved_bytes_per_token == pytest.approx(short.saved_bytes_per_token, rel=0.001), (
        "no map is kept"
    )


def test_fake_tensors_keep_what_real_ones_keep(program: ModuleType) -> None:
    tracing = sys.modules["clusterkit_tracing"]
    fake = program.build(program.find(f"{MODULES}:small"))
    real = program.find(f"{MODULES}:small")().bfloat16()
    said = tracing.trace(fake, program.find_blocks(fake), (2, 64))
    seen = tracing.kept(real, list(real.layers), tracing.tokens((2, 64), None))
    assert said == seen


def test_the_operations_of_a_forward_pass(program: ModuleType) -> None:
    built = program.build(program.find(f"{MODULES}:llama_3_8b"))
    seen = program.trace(built, program.find_blocks(built), (1, 8192))
    shape = model_named("llama-3-8b")
    products = 2 * (shape.params - shape.embedding_params)
    attention = 4 * shape.layers * 8192 * shape.heads * shape.head_dim
    flops = seen["outside_flops"] + shape.layers * fmean(seen["block_flops"])
    assert flops == pytest.approx(products + attention, rel=0.001)


def test_a_tied_model_that_computes_its_own_loss(program: ModuleType) -> None:
    model = traced(program, "gpt2")
    assert untraced(model) == ""
    published = model_named("gpt2")
    assert (model.params, model.block_params) == (published.params, published.block_params)
    assert (model.tied, model.gated) == (True, False)
    assert (model.heads, model.head_dim, model.ffn) == (12, 64, 3072)
    assert model.learned_positions == 1024
    assert model.saved_bytes_per_token is not None
    # Korthikanti et al. (arXiv:2205.05198) count 34, two of them masks of dropouts it has not.
    assert model.saved_bytes_per_token / 768 == pytest.approx(32, abs=0.2)


def test_what_depends_on_values_is_counted_and_says_why_it_is_not_traced(
    program: ModuleType,
) -> None:
    model = traced(program, "mixtral_8x7b")
    assert model.params == 46_702_792_704
    assert model.saved_bytes_per_token is None
    assert "what it does depends on the values of tensors" in untraced(model)
    assert (model.experts, model.active_experts) == (8, 2)
    assert model.active_params == model_named("mixtral-8x7b").active_params


def test_blocks_that_compute_again_by_themselves_are_left_to_the_formulas(
    program: ModuleType,
) -> None:
    model = traced(program, "checkpointed")
    assert "keep only their input" in untraced(model)
    assert model.saved_bytes_per_token is None


def test_frozen_parameters_are_told_apart(program: ModuleType) -> None:
    built = program.build(program.find(f"{MODULES}:half_frozen"))
    counted = program.count(built, program.find_blocks(built))
    assert counted["params"] - counted["trainable"] == counted["blocks"][0]


def test_blocks_without_an_embedding_get_numbers(program: ModuleType) -> None:
    model = traced(program, "stack")
    assert untraced(model) == ""
    assert "taken for a Llama" in model.assumed[0]
    built = program.build(program.find(f"{MODULES}:stack"))
    assert len(program.find_blocks(built)[1]) == 6
    assert model.params == program.numel(built.parameters())


def test_a_module_without_blocks_is_counted(program: ModuleType) -> None:
    model = traced(program, "picture_model")
    assert model.params == 64 * 3 * 49 + 64
    assert "it has no list of equal blocks" in untraced(model)


def test_a_module_that_is_there_already_is_taken_as_it_is(program: ModuleType) -> None:
    built = program.build(program.find(f"{MODULES}:linear"))
    assert program.numel(built.parameters()) == 20


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        (f"{MODULES}:llama_3_7b", "has no 'llama_3_7b'", "did you mean 'llama_3_70b'?"),
        ("tests.no_such:model", "no Python module 'tests.no_such'", "PACKAGE.MODULE:FACTORY"),
        ("nowhere/at_all.py:model", "there is no nowhere/at_all.py", "PACKAGE.MODULE:FACTORY"),
        (f"{MODULES}:needs_a_size", "without arguments: missing", "a function that needs none"),
        (f"{MODULES}:no_model", "gives a list, no torch.nn.Module", "PACKAGE.MODULE:FACTORY"),
    ],
)
def test_what_names_no_model_says_what_to_give(
    program: ModuleType, spec: str, message: str, hint: str
) -> None:
    with pytest.raises(program.RefusedError) as refused:
        program.build(program.find(spec))
    error = module._refusal(spec, refused.value.answer)
    assert message in error.problems[0].message
    assert hint in str(error.problems[0].hint)


@pytest.mark.parametrize("spec", ["model", ":model", "package:", ""])
def test_a_path_without_a_function_is_refused_before_anything_is_run(spec: str) -> None:
    with pytest.raises(UserError, match="names no function"):
        model_of_module(spec)


def test_code_that_fails_is_shown_by_its_last_words() -> None:
    with pytest.raises(UserError) as caught:
        model_of_module(f"{MODULES}:reads_a_value")
    first, place, line, last = caught.value.problems[0].message.splitlines()
    assert "cannot be built on the meta device" in first
    assert "tests/helpers/estimate_modules.py" in place
    assert ".item()" in line
    assert last == "  RuntimeError: Tensor.item() cannot be called on meta tensors"


def test_without_torch_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No torch', name='torch')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match=r"needs torch.*\n.*pip install torch"):
        model_of_module(f"{MODULES}:llama_3_8b")


def test_code_that_never_ends_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(UserError, match="within 1 s"):
        model_of_module(f"{tmp_path}/slow.py:model", timeout_s=1)


def test_a_process_that_dies_while_it_traces_leaves_what_it_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = '{"params": 7, "trainable": 7, "buffers": 0, "blocks": [], "embeddings": [], '
    said = f'{{"counted": {counted}"heads": [], "config": {{}}}}}}\n{{"step": "trace"}}\n'
    died = Answer(code=-6, output=said, errors="terminate called\n")
    monkeypatch.setattr(module, "run_command", lambda *_, **__: died)
    model = model_of_module("a:b")
    assert model.params == 7
    assert "(terminate called)" in untraced(model)


def _parts(**changes: Any) -> Parts:
    parts = Parts(
        params=10**9,
        blocks=(1000, 1000),
        block_weights=((256, 256), (64, 256), (64, 256), (256, 256), (512, 256), (256, 512)),
        embeddings=((1000, 256),),
        config={},
        attributes={},
    )
    return replace(parts, **changes)


def test_weights_tell_the_shape_where_nothing_else_does() -> None:
    shape = shape_of_parts(_parts(), name="x")
    assert (shape.hidden, shape.vocab, shape.ffn, shape.gated) == (256, 1000, 512, False)
    assert (shape.heads, shape.kv_heads, shape.head_dim) == (4, 1, 64)
    assert shape.params == replace(shape, exact_params=None).params == 10**9
    assert shape.block_params == 1000
    assert "how many heads" in shape.assumed[0]


def test_a_configuration_that_is_wrong_gives_way_to_the_weights() -> None:
    shape = shape_of_parts(_parts(config={"n_head": -3, "num_experts": "many"}), name="x")
    assert (shape.heads, shape.experts) == (4, 0)
    assert any("cannot be read" in note for note in shape.assumed)
