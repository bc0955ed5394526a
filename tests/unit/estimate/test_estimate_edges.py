"""Where an estimate has to say no, or something else than the obvious: one test for each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.errors import UserError
from clusterkit.estimate.advice.changes import smallest_change
from clusterkit.estimate.advice.launch import launch_of
from clusterkit.estimate.advice.recommend import answer_of, warnings_for
from clusterkit.estimate.machines.gpus import gpu_named
from clusterkit.estimate.machines.interconnects import interconnect_named
from clusterkit.estimate.memory.phases import usual_ram
from clusterkit.estimate.models.model_config import model_of_config
from clusterkit.estimate.models.module import Parts, shape_of_parts
from clusterkit.estimate.models.named import model_named, model_of_params
from clusterkit.estimate.query.answer import read_options
from clusterkit.estimate.query.options import EstimateOptions
from clusterkit.estimate.refusals import problems_of
from clusterkit.estimate.request import Request, setup_of
from clusterkit.estimate.setup import Loss, Setup
from clusterkit.estimate.strategies import Strategy, strategy_named
from tests.helpers.launch_reader import setup_from_launch


def request_of(params: str = "7B", gpu: str = "h100", gpus: int = 8, **changes: Any) -> Request:
    given: dict[str, Any] = {
        "model": model_of_params(params), "gpu": gpu_named(gpu), "gpus": gpus, "gpus_per_node": 8,
        "seq": 4096, "micro_batch": 1, "global_batch": gpus,
    } | changes  # fmt: skip
    return Request(**given)


def setup(name: str, **changes: Any) -> Setup:
    return replace(setup_of(strategy_named(name), request_of()), **changes)


def said(one: Setup) -> str:
    return " ".join(f"{problem.message} ({problem.hint})" for problem in problems_of(one))


# --- the RAM and the disks of a node ---


@pytest.mark.parametrize(("params", "gpu", "gpus"), [("1T", "h100", 8), ("70B", "4090", 1)])
def test_what_a_node_has_no_ram_for_goes_to_its_disks(params: str, gpu: str, gpus: int) -> None:
    tried = answer_of(request_of(params, gpu, gpus))
    chosen = tried.chosen
    assert chosen is not None
    assert chosen.name == "zero3-nvme+ac"
    large = answer_of(request_of(params, gpu, gpus, host_memory=30e12)).chosen
    assert large is not None
    assert large.name == "zero3-offload+ac"


def test_the_ram_of_a_node_is_given_in_gb() -> None:
    flags = EstimateOptions(params="7B", gpu="h100", gpus=8, host_memory=512)
    assert read_options(flags).host_memory == 512e9


def test_a_reason_names_the_ram_of_the_node() -> None:
    tried = answer_of(request_of(host_memory=50e9, strategy=strategy_named("zero3-offload")))
    (one,) = tried.candidates
    assert one.memory.device.likely <= one.memory.limit
    assert not one.fits
    assert "189.0 GB of RAM in each node, which has 50.0 GB" in tried.why
    change = smallest_change(one.setup, tried.request.fits, per_node=8)
    assert change is not None
    assert change.flags == "--gpus 32"


def test_a_reason_names_what_lacks_most() -> None:
    for host_memory, reason in ((64e9, "of RAM in each node"), (1e12, "most of it activations")):
        tried = answer_of(
            request_of(
                gpu="4090",
                gpus=1,
                host_memory=host_memory,
                strategy=strategy_named("zero3-offload"),
            )
        )
        assert reason in tried.why


def test_disks_are_only_a_warning() -> None:
    tried = answer_of(request_of("2T", strategy=strategy_named("zero3-nvme+ac")))
    (one,) = tried.candidates
    assert one.memory.host_bytes <= one.memory.host_limit
    assert any("on the disks of each node" in problem.message for problem in warnings_for(one))


def test_the_usual_ram_is_that_of_the_vendors_systems() -> None:
    for gpu, gigabytes in (("h100", 256), ("a100-40", 128), ("v100-32", 64), ("4090", 64)):
        assert usual_ram(gpu_named(gpu)) == gigabytes * 1e9


# --- the plan that was named ---


def names(chosen: Strategy | None, **changes: Any) -> list[str]:
    return [one.name for one in answer_of(request_of(**changes, strategy=chosen)).candidates]


def test_what_was_not_said_of_ranks_stays_1() -> None:
    batch: dict[str, Any] = {"micro_batch": 8, "global_batch": 32}
    for text, tp, pp in (("megatron-tp2", 2, None), ("megatron-pp4", None, 4)):
        tried = answer_of(request_of(tp=tp, pp=pp, **batch, strategy=strategy_named(text)))
        (one,) = tried.candidates
        assert (one.name, one.setup.tp, one.setup.pp) == (text, tp or 1, pp or 1)
    beside = next(
        one for one in answer_of(request_of(tp=2, **batch)).candidates if "meg" in one.name
    )
    assert (beside.setup.tp, beside.setup.pp) == (2, 1)


def test_megatron_alone_divides_as_little_as_fits() -> None:
    assert names(strategy_named("megatron"), params="350M") == ["megatron"]
    assert names(strategy_named("megatron"), micro_batch=8, global_batch=64) == ["megatron-tp4"]
    named = strategy_named("megatron")
    (one,) = answer_of(request_of("1T", strategy=named)).candidates
    others = [
        answer_of(request_of("1T", tp=tp, pp=8 // tp, strategy=named)).candidates[0]
        for tp in (1, 2, 4, 8)
    ]
    assert one.memory.excess == min(other.memory.excess for other in others)


@pytest.mark.parametrize("text", ["", "  ", "fsdp-tp0", "megatron-tp2-pp0"])
def test_names_of_no_strategy(text: str) -> None:
    with pytest.raises(UserError) as caught:
        strategy_named(text)
    assert caught.value.problems[0].hint


def test_a_number_of_data_parallel_ranks_is_kept_to_be_compared() -> None:
    assert strategy_named("zero3-dp4").dp == 4


# --- what libraries assert, and numbers that do not divide ---

MIXTRAL = model_named("mixtral-8x7b")


@pytest.mark.parametrize(
    ("one", "reason", "hint"),
    [
        (setup("zero2", no_sync=True), "ZeRO-2 shards gradients as they come", "--strategy zero1"),
        (setup("zero3", no_sync=True), "enters no_sync", "leave --no-sync out"),
        (setup("ddp", tp=2), "a whole copy on every GPU", "--strategy megatron --tp 2, or fsdp"),
        (setup("lora", tp=2), "a whole copy on every GPU", "megatron"),
        (
            setup("megatron", model=MIXTRAL, tp=4, ep=4),
            "ep 4 does not divide the 2 ranks of dp x cp",
            "--ep 1 or 2",
        ),
        (
            setup("megatron", model=MIXTRAL, gpus=48, ep=6),
            "ep 6 does not divide the 8 experts of mixtral-8x7b",
            "--ep 1, 2, 4 or 8",
        ),
        (setup("megatron", ep=2), "has no experts", "--ep 1"),
        (
            setup("megatron", model=model_named("llama-3.1-8b"), gpus=24, tp=3),
            "tp 3 does not divide",
            "--tp 1, 2, 4 or 8",
        ),
        (
            setup("fsdp-hybrid", gpus=16, tp=16, shard_group=1),
            "1 data-parallel rank hold one only",
            "--gpus 32",
        ),
        (setup("fsdp-hybrid", shard_group=8), "one node only", "--gpus 16"),
    ],
)
def test_what_cannot_run_says_what_would(one: Setup, reason: str, hint: str) -> None:
    assert reason in said(one)
    assert hint in said(one)


@pytest.mark.parametrize("one", [setup("zero1", no_sync=True), setup("fsdp", no_sync=True, tp=2)])
def test_what_runs_is_not_refused(one: Setup) -> None:
    assert problems_of(one) == ()


def test_experts_on_as_many_ranks_as_there_are() -> None:
    assert problems_of(setup("megatron", model=MIXTRAL, tp=2, ep=4)) == ()


# --- figures out of any range, words that are not known ---


@pytest.mark.parametrize(
    ("text", "range_"),
    [
        ("x:memory=48,bf16=1e-320,bandwidth=1", "from 0.1 to 1,000,000"),
        ("x:memory=1e9,bf16=100,bandwidth=900", "from 1 to 10,000"),
        ("h100:pcie=40", "from 1 to 8"),
        ("h100:bandwidth=nan", "from 1 to 1,000,000"),
    ],
)
def test_figures_of_no_gpu(text: str, range_: str) -> None:
    with pytest.raises(UserError) as caught:
        gpu_named(text)
    assert range_ in str(caught.value)


@pytest.mark.parametrize("text", ["x:gbit=1e-300", "x:gbit=400,nics=1e9", "x:gbit=nan"])
def test_figures_of_no_network(text: str) -> None:
    with pytest.raises(UserError, match="it has to be a number from"):
        interconnect_named(text)


@pytest.mark.parametrize("text", ["b100", "p100", "2080ti"])
def test_another_generation_is_no_misspelt_name(text: str) -> None:
    with pytest.raises(UserError) as caught:
        gpu_named(text)
    assert "did you mean" not in str(caught.value)
    assert "gives your own" in str(caught.value)


def test_a_module_without_parameters_is_refused() -> None:
    with pytest.raises(UserError, match="without parameters"):
        shape_of_parts(Parts(params=0, config={}, attributes={}), name="mymod:empty")


def test_a_missing_key_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_text('{"model_type": "llama"}')
    with pytest.raises(UserError) as caught:
        model_of_config(path)
    assert str(caught.value).splitlines()[0] == f"{path} has no hidden_size"


# --- flags ---


@pytest.mark.parametrize(
    ("flags", "reason", "hint"),
    [
        ({"gpus": 99999999999999999999}, "--gpus is 99,999,999", "at most 1,000,000"),
        ({"micro_batch": 10**20}, "--micro-batch is 100,", "at most"),
        ({"strategy": "zero3-dp4"}, "is for 4 GPUs, not for 8", "--gpus 4"),
        ({"strategy": ""}, "--strategy names none", "--strategy fsdp"),
        ({"strategy": "megatron", "vpp": 4}, "--vpp 4 divides the stages", "--pp 2"),
        ({"model": "", "params": None}, "which model?", "--params 7B"),
        ({"model": ""}, "which model?", "--params 7B"),
        ({"host_memory": -1.0}, "--host-memory is -1", "--host-memory 512"),
        ({"host_memory": float("nan")}, "--host-memory is nan", "--host-memory 512"),
    ],
)
def test_flags_that_make_no_sense(flags: dict[str, Any], reason: str, hint: str) -> None:
    given: dict[str, Any] = {"params": "7B", "gpu": "h100", "gpus": 8} | flags
    with pytest.raises(UserError) as caught:
        read_options(EstimateOptions(**given))
    assert reason in str(caught.value)
    assert hint in str(caught.value)


def test_dp_in_a_name_is_compared_with_the_gpus() -> None:
    flags = EstimateOptions(params="7B", gpu="h100", gpus=8, strategy="megatron-tp2-dp4")
    chosen = read_options(flags).strategy
    assert chosen is not None
    assert chosen.full_name == "megatron-tp2"


# --- what is written for Megatron ---


@pytest.mark.parametrize(
    "changes",
    [
        {"compiled": True},
        {"no_sync": True},
        {"loss": Loss.COMPILED},
        {"compiled": True, "no_sync": True, "loss": Loss.COMPILED, "tp": 2, "pp": 2},
        {"fp32_logits": False, "loss_parallel": False, "step_copies": 2, "fused_norms": True},
    ],
)
def test_megatron_reads_back_what_it_has_no_argument_for(changes: dict[str, Any]) -> None:
    one = setup("megatron", accumulation=8, **changes)
    launch = launch_of(one)
    assert json.loads(launch.files["training.json"]).keys() == changes.keys() - {"tp", "pp"}
    assert setup_from_launch(launch.files, model=one.model, gpu=one.gpu) == one


def test_megatron_needs_no_other_file_for_the_rest() -> None:
    assert set(launch_of(setup("megatron", tp=2)).files) == {"submit.sh"}


def test_a_token_cannot_see_more_experts_than_there_are(tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    shape = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 512, "vocab_size": 1000}  # fmt: skip
    experts = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 20}
    path.write_text(json.dumps(shape | experts))
    with pytest.raises(UserError, match="a token cannot see 20 of 8 experts"):
        model_of_config(path)
    path.write_text(json.dumps(shape | {"model_type": "llama"}))
    assert model_of_config(path).name == "mix"
