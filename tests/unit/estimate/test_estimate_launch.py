"""What `clusterkit estimate --launch` writes stands for the plan that it was written for."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
import yaml

from clusterkit.core.errors import UserError
from clusterkit.estimate.advice.launch import launch_of
from clusterkit.estimate.machines.gpus import gpu_named
from clusterkit.estimate.refusals import problems_of
from clusterkit.estimate.request import Request, setup_of
from clusterkit.estimate.setup import (
    Adapter,
    Checkpointing,
    Library,
    Loss,
    Optimizer,
    Setup,
    Sharding,
)
from clusterkit.estimate.shapes import ModelShape
from clusterkit.estimate.strategies import STRATEGIES, strategy_named
from tests.helpers.launch_reader import setup_from_launch
from tests.helpers.needs import module

NAMES = tuple(strategy.name for strategy in STRATEGIES)
MODEL = ModelShape(
    name="tiny-llama", layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336,
    vocab=128256, max_seq=8192,
)  # fmt: skip
REQUEST = Request(model=MODEL, gpu=gpu_named("h100"), gpus=32, gpus_per_node=8, seq=4096,
            micro_batch=2, global_batch=128)  # fmt: skip
ON_ONE_GPU = replace(REQUEST, gpus=1, gpus_per_node=1)


def setup_named(name: str, **changes: Any) -> Setup:
    wish = ON_ONE_GPU if name == "single" else REQUEST
    return replace(setup_of(strategy_named(name), wish), **changes)


def read_back(setup: Setup) -> Setup:
    launch = launch_of(setup, folder="plan")
    return setup_from_launch(launch.files, model=setup.model, gpu=setup.gpu)


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_reads_back_to_the_same_plan(name: str) -> None:
    setup = setup_named(name)
    assert problems_of(setup) == ()
    assert read_back(setup) == setup


@pytest.mark.parametrize("wish", ["fp32", "fp16", "bf16", "pure-bf16", "amp-bf16", "fp8"])
@pytest.mark.parametrize("name", NAMES)
def test_every_precision_reads_back(name: str, wish: str) -> None:
    base = ON_ONE_GPU if name == "single" else REQUEST
    setup = setup_of(strategy_named(name), replace(base, precision=wish))
    if not problems_of(setup):
        assert read_back(setup) == setup


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("megatron", {"tp": 8, "pp": 4, "vpp": 2, "accumulation": 32}),
        ("megatron", {"tp": 2, "pp": 5, "accumulation": 32, "gpus": 80}),
        ("megatron", {"tp": 2, "cp": 2, "accumulation": 4, "sequence_parallel": False}),
        ("megatron", {"checkpointing": Checkpointing.ALTERNATE, "optimizer": Optimizer.SGD}),
        ("megatron", {"checkpointing": Checkpointing.SELECTIVE, "loss": Loss.FUSED}),
        ("zero3", {"tp": 4, "checkpointing": Checkpointing.FULL, "loss": Loss.FUSED}),
        ("zero1", {"pp": 4, "optimizer": Optimizer.PAGED_ADAMW_8BIT}),
        ("ddp", {"bucket_view": True, "sharding": Sharding.OPTIMIZER}),
        ("fsdp", {"tp": 8, "no_sync": True, "compiled": True}),
        ("fsdp1", {"adapter": Adapter(rank=64, on_mlp=False), "flash_attention": False}),
        ("ddp", {"adapter": Adapter(quantized=True), "loss": Loss.CHUNKED}),
    ],
)
def test_settings_read_back(name: str, changes: dict[str, Any]) -> None:
    setup = setup_named(name, **changes)
    assert read_back(setup) == setup


@pytest.mark.parametrize("field", dataclasses.fields(Setup), ids=lambda field: field.name)
def test_every_setting_has_a_place(field: dataclasses.Field[Any]) -> None:
    setup = setup_named("ddp")
    value = getattr(setup, field.name)
    if field.name in {"model", "gpu", "interconnect", "library"}:
        return  # said by whoever reads, or by the strategy
    if isinstance(value, bool) or field.name == "fused_norms":
        other: Any = not value
    elif isinstance(value, enum.Enum):
        other = next(member for member in type(value) if member is not value)
        other = Sharding.OPTIMIZER if field.name == "sharding" else other
    else:
        other = {"adapter": Adapter(), "step_copies": 2}.get(field.name, 2 * (value or 1))
    if field.name in {"shard_group", "offload_optimizer", "offload_params"}:
        return  # nothing that DDP has
    changed = replace(setup, **{field.name: other})
    assert read_back(changed) == changed


def test_a_changed_file_is_read_with_care() -> None:
    files = dict(launch_of(setup_named("fsdp")).files)
    training = json.loads(files["training.json"])
    del training["compiled"]
    files["training.json"] = json.dumps(training)
    assert setup_from_launch(files, model=MODEL, gpu=REQUEST.gpu) == setup_named("fsdp")
    files["training.json"] = json.dumps({**training, "lost": "fused"})
    with pytest.raises(UserError, match=r"unknown key 'lost'(.|\n)*did you mean 'loss'"):
        setup_from_launch(files, model=MODEL, gpu=REQUEST.gpu)
    files["training.json"] = json.dumps({**training, "loss": "fuzed"})
    with pytest.raises(UserError, match=r"loss is 'fuzed'(.|\n)*did you mean 'fused'"):
        setup_from_launch(files, model=MODEL, gpu=REQUEST.gpu)


def test_the_submit_line() -> None:
    launch = launch_of(setup_named("zero3"), folder="plan", cluster="a100", script="train.py")
    assert shlex.join(launch.command) == (
        "clusterkit submit --cluster a100 --framework deepspeed --nodes 4 --gpus-per-node 8 "
        "train.py --deepspeed_config plan/ds_config.json"
    )
    assert launch_of(setup_named("fsdp")).command[3] == "torchrun"


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32", "pure-bf16", "amp-bf16"])
def test_deepspeed_reads_the_configuration_as_it_is_meant(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = module("deepspeed.runtime.config")
    monkeypatch.setenv("WORLD_SIZE", "1")  # the batch of one rank: it asks no other
    monkeypatch.setenv("RANK", "0")
    for name in ("zero1", "zero2-offload", "zero3", "zero3-offload", "zero3-nvme"):
        setup = setup_of(strategy_named(name), replace(REQUEST, precision=precision))
        read = config.DeepSpeedConfig(json.loads(launch_of(setup).files["ds_config.json"]))
        assert int(read.zero_config.stage) == int(name[4])
        assert read.train_micro_batch_size_per_gpu == setup.micro_batch
        assert read.gradient_accumulation_steps == setup.accumulation
        assert read.bfloat16_config.enabled == ("bf16" in precision and "amp" not in precision)
        assert read.float16_config.enabled == (precision == "fp16")
        assert not read.zero_config.zero_quantized_gradients
        where = getattr(read.zero_config.offload_optimizer, "device", "none")
        assert str(getattr(where, "value", where)) == str(setup.offload_optimizer)
    pluses = json.loads(
        launch_of(setup_named("zeropp", precision=precision)).files["ds_config.json"]
    )
    zero = config.DeepSpeedConfig(pluses).zero_config
    assert zero.zero_quantized_weights
    assert zero.zero_quantized_gradients
    assert zero.zero_hpz_partition_size == REQUEST.gpus_per_node


def test_fsdp_arguments_are_those_of_torch() -> None:
    fsdp = module("torch.distributed.fsdp")
    document = json.loads(launch_of(setup_named("fsdp-hybrid")).files["fsdp.json"])
    assert document["fully_shard"]["mesh"] == {"dp_replicate": 4, "dp_shard": 8}
    known = set(inspect.signature(fsdp.fully_shard).parameters)
    assert set(document["fully_shard"]) <= known
    policy = document["fully_shard"]["mp_policy"]
    assert set(policy) <= set(inspect.signature(fsdp.MixedPrecisionPolicy).parameters)
    document = json.loads(launch_of(setup_named("fsdp1-shard-grad-op")).files["fsdp.json"])
    (arguments,) = document.values()
    assert set(arguments) <= set(inspect.signature(fsdp.FullyShardedDataParallel).parameters)
    assert arguments["sharding_strategy"] in fsdp.ShardingStrategy.__members__


def test_accelerate_says_the_same() -> None:
    plan = yaml.safe_load(launch_of(setup_named("fsdp-hybrid")).files["accelerate.yaml"])
    assert (plan["num_machines"], plan["num_processes"], plan["mixed_precision"]) == (4, 32, "bf16")
    assert plan["fsdp_config"]["fsdp_reshard_after_forward"] is True
    plan = yaml.safe_load(launch_of(setup_named("zero2")).files["accelerate.yaml"])
    assert plan["deepspeed_config"]["deepspeed_config_file"] == "./ds_config.json"
    assert "mixed_precision" not in plan


def test_a_folder_that_is_no_launch() -> None:
    with pytest.raises(UserError, match="there is no submit"):
        setup_from_launch({}, model=MODEL, gpu=REQUEST.gpu)
    files = dict(launch_of(setup_named("zero1")).files)
    files["ds_config.json"] = "{"
    with pytest.raises(UserError, match=r"ds_config.json cannot be read"):
        setup_from_launch(files, model=MODEL, gpu=REQUEST.gpu)


def test_libraries_of_all_strategies_are_known() -> None:
    assert {strategy.library for strategy in STRATEGIES} == set(Library)
