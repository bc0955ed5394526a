"""Batch arithmetic, what is refused, the strategies that are tried, and which one is taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.core.errors import UserError
from clusterkit.estimate.advice.changes import (
    largest_micro_batch,
    lowering_settings,
    smallest_change,
)
from clusterkit.estimate.advice.recommend import Candidate, answer_of, recommended
from clusterkit.estimate.machines.gpus import gpu_named
from clusterkit.estimate.models.named import model_named, model_of_params
from clusterkit.estimate.refusals import problems_of, warnings_of
from clusterkit.estimate.request import Request, precision_of, setup_of, solve_batch
from clusterkit.estimate.setup import (
    Adapter,
    Checkpointing,
    Compression,
    Library,
    Loss,
    Offload,
    Optimizer,
    Precision,
    Setup,
    Sharding,
)
from clusterkit.estimate.strategies import strategy_named

LLAMA = model_named("llama-3.1-8b")


def request_of(**changes: Any) -> Request:
    given: dict[str, Any] = {
        "model": LLAMA, "gpu": gpu_named("h100"), "gpus": 16, "gpus_per_node": 8, "seq": 4096,
        "micro_batch": 1, "global_batch": 16,
    } | changes  # fmt: skip
    return Request(**given)


def setup(name: str = "fsdp", **changes: Any) -> Setup:
    return replace(setup_of(strategy_named(name), request_of()), **changes)


# --- batch ---


@given(ranks=st.integers(1, 512), micro=st.integers(1, 64), steps=st.integers(1, 64))
def test_any_two_numbers_of_a_batch_give_the_third(ranks: int, micro: int, steps: int) -> None:
    whole = ranks * micro * steps
    for missing in ("micro_batch", "accumulation", "global_batch"):
        known = {"micro_batch": micro, "accumulation": steps, "global_batch": whole}
        del known[missing]
        batch = solve_batch(ranks=ranks, **known)
        assert (batch.micro_batch, batch.accumulation, batch.global_batch) == (micro, steps, whole)


def test_a_batch_of_which_little_is_said() -> None:
    assert solve_batch(ranks=8).global_batch == 8
    assert solve_batch(ranks=8, global_batch=64).accumulation == 8
    assert solve_batch(ranks=8, accumulation=4).global_batch == 32


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"global_batch": 100}, "--global-batch 96 or 104"),
        ({"global_batch": 3}, "--global-batch 8"),
        ({"global_batch": 100, "accumulation": 3}, "--global-batch 96 or 120"),
        ({"micro_batch": 2, "accumulation": 2, "global_batch": 64}, "--accumulation 4"),
        ({"micro_batch": 0}, "--micro-batch is 0"),
        ({"global_batch": -8}, "--global-batch is -8"),
    ],
)
def test_a_batch_that_does_not_divide(numbers: dict[str, int], said: str) -> None:
    with pytest.raises(UserError) as caught:
        solve_batch(ranks=8, **numbers)
    assert said in str(caught.value)


# --- names ---


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ZeRO-3", "zero3"), ("zero stage 2", "zero2"), ("FSDP FULL_SHARD", "fsdp"),
        ("HYBRID_SHARD", "fsdp-hybrid"), ("SHARD_GRAD_OP", "fsdp-shard-grad-op"),
        ("FSDP1 NO_SHARD", "fsdp-no-shard"), ("3D", "megatron"), ("hsdp", "fsdp-hybrid"),
        ("zero-infinity", "zero3-nvme"), ("zero2_offload", "zero2-offload"),
    ],
)  # fmt: skip
def test_strategies_by_what_people_call_them(text: str, name: str) -> None:
    assert strategy_named(text).name == name


def test_names_hold_ranks_and_additions() -> None:
    chosen = strategy_named("megatron-tp8-pp2+ac")
    assert (chosen.tp, chosen.pp, chosen.checkpointing) == (8, 2, Checkpointing.FULL)
    assert strategy_named("tp4xpp2xdp2").name == "megatron"
    assert strategy_named("zero3+qlora").adapter == Adapter(quantized=True)
    with pytest.raises(UserError, match=r"did you mean 'fsdp'\?"):
        strategy_named("fdsp")
    with pytest.raises(UserError, match="unknown addition"):
        strategy_named("fsdp+magic")


def test_16_bits_are_what_is_usual_with_the_library() -> None:
    h100, v100 = gpu_named("h100"), gpu_named("v100-32")
    assert precision_of(None, Library.FSDP2, h100) is Precision.AMP_BF16
    assert precision_of("bf16", Library.DEEPSPEED, h100) is Precision.BF16
    assert precision_of(None, Library.DDP, v100) is Precision.AMP_FP16
    assert precision_of(None, Library.MEGATRON, v100) is Precision.FP16
    assert precision_of(None, Library.DDP, h100, Adapter()) is Precision.PURE_BF16


# --- legality ---


@pytest.mark.parametrize(
    ("refused", "reason", "hint"),
    [
        (setup(gpus=12), "12 GPUs do not fill nodes of 8", "--gpus 8 or 16"),
        (setup(gpus=0), "--gpus is 0", "from 1 on"),
        (setup(seq=-1), "--seq is -1", "from 1 on"),
        (setup(gpus=10**9), "--gpus is 1,000,000,000", "at most"),
        (setup("megatron", tp=3), "do not divide into tp 3", "--gpus 18"),
        (setup("megatron", tp=16, model=model_named("llama-3.1-8b")), "8 heads of keys", "--tp"),
        (setup(tp=2, model=model_named("gpt2")), "50257 words of the vocabulary", "--tp 1"),
        (
            setup("zero2", pp=2),
            "ZeRO-2 and pipeline parallelism exclude",
            "--strategy zero1 --pp 2",
        ),
        (setup("zeropp", gpus=8), "there is one only", "--gpus 16"),
        (setup("zeropp", gpus=16, tp=2), "not with tp 2", "--strategy zeropp without"),
        (setup("zeropp", gpus=16, cp=2), "not with cp 2", "zero3"),
        (setup("zeropp", gpus=16, adapter=Adapter()), "not with adapters", "zero3"),
        (setup("zeropp", gpus=16, offload_optimizer=Offload.CPU), "not with offloading", "zero3"),
        (setup("zeropp", gpus=16, precision=Precision.FP32), "not with fp32", "zero3"),
        (setup("zeropp", gpus=16, library=Library.FSDP2), "not with fsdp2", "zero3"),
        (setup("zeropp", gpus=16, sharding=Sharding.HYBRID), "not with hybrid", "zero3"),
        (setup("fsdp", compression=Compression.FP16), "not with fsdp2", "ddp+fp16"),
        (setup("single", gpus=1, compression=Compression.FP16), "one GPU sends no", "--gpus 2"),
        (
            setup("ddp", precision=Precision.PURE_BF16, compression=Compression.FP16),
            "sent in 16 bits without a hook",
            "--strategy ddp",
        ),
        (
            setup("ddp", adapter=Adapter(), compression=Compression.POWERSGD),
            "not for adapters or experts",
            "leave +powersgd out",
        ),
        (setup("zero3", pp=2), "ZeRO-3 and pipeline parallelism exclude", "megatron"),
        (setup("ddp", pp=2), "DDP alone has no pipeline", "megatron"),
        (setup("megatron", pp=16, model=model_named("gpt2")), "more than the 12 layers", "--pp 12"),
        (setup("megatron", pp=8, model=model_named("gpt2")), "pp 8 does not divide", "--pp 4 or 6"),
        (setup("megatron", vpp=2), "vpp 2 divides stages of a pipeline", "--pp 2"),
        (setup("megatron", pp=8, vpp=3, accumulation=8), "pp 8 x vpp 3 does not divide", "--vpp"),
        (
            setup("megatron", pp=4, vpp=2, accumulation=6),
            "in multiples of pp 4",
            "--accumulation 8",
        ),
        (setup(gpu=gpu_named("v100-32")), "multiplies no bf16", "--precision fp16"),
        (setup(gpu=gpu_named("t4")), "multiplies no bf16", "--precision fp16"),
        (setup(gpu=gpu_named("a100-80"), precision=Precision.FP8), "no fp8", "--precision bf16"),
        (setup(model=model_named("gpt2"), seq=2048), "positions for 1024 tokens", "--seq 1024"),
        (setup(cp=2, seq=4098), "multiples of 4", "--seq 4100"),
        (setup("ddp", sharding=Sharding.FULL), "DDP does not shard", "fsdp"),
        (setup("fsdp-hybrid", gpus=8), "there is one node only", "--gpus 16"),
        (setup("ddp", offload_optimizer=Offload.CPU), "nothing to offload with", "zero2-offload"),
        (setup(offload_optimizer=Offload.CPU), "together", "fsdp-offload"),
        (setup(offload_params=Offload.NVME), "to the CPU only", "zero3-nvme"),
        (setup("zero2", offload_params=Offload.CPU), "only ZeRO-3 offloads", "zero3-offload"),
        (setup("megatron", adapter=Adapter()), "trains no adapters", "lora"),
        (setup("megatron", optimizer=Optimizer.ADAFACTOR), "no adafactor", "adamw"),
        (setup("megatron", loss=Loss.CHUNKED), "no loss in chunks", "--loss fused"),
    ],
)
def test_what_cannot_run_is_refused_with_a_way_out(refused: Setup, reason: str, hint: str) -> None:
    problems = problems_of(refused)
    assert any(reason in problem.message for problem in problems), problems
    assert any(hint in (problem.hint or "") for problem in problems), problems
    assert all(problem.hint for problem in problems)


def test_what_can_run_but_should_not_is_a_warning() -> None:
    over = setup("megatron", tp=16, model=replace(LLAMA, kv_heads=32), gpus_per_node=8)
    assert problems_of(over) == ()
    assert any("over nodes of 8" in problem.message for problem in warnings_of(over))
    long = setup(seq=262144)
    assert problems_of(long) == ()
    assert any("go beyond the 131072" in problem.message for problem in warnings_of(long))
    uneven = setup("megatron", pp=8, gpus=16, model=model_of_params("175B"), accumulation=32)
    assert problems_of(uneven) == ()
    assert any("14 on each stage, 10 on the last" in p.message for p in warnings_of(uneven))
    idle = tuple(warnings_of(setup("megatron", pp=4, accumulation=4)))
    assert any("idle 43% of the time" in problem.message for problem in idle)


# --- recommendation ---


def test_the_simplest_that_fits_is_taken() -> None:
    small = answer_of(request_of(model=model_named("gpt2"), seq=1024))
    assert small.chosen is not None
    assert small.chosen.name == "ddp"
    large = answer_of(request_of())
    assert large.chosen is not None
    assert large.chosen.name != "ddp"
    assert not large.candidates[0].fits
    assert "ddp" in large.why or "times as fast" in large.why


def test_much_faster_wins_over_simpler() -> None:
    tried = answer_of(request_of())
    fitting = [one for one in tried.candidates if one.fits]
    slow, fast = fitting[0], fitting[1]
    rate = slow.speed.tokens_per_s_per_gpu
    crawling = replace(slow.speed, tokens_per_s_per_gpu=replace(rate, likely=rate.likely / 3))
    chosen, why = recommended((replace(slow, speed=crawling), fast))
    assert chosen == fast
    assert f"times as fast as {slow.name}, the simplest that fits" in why


def test_checkpointing_comes_before_tensor_parallelism() -> None:
    tried = answer_of(request_of(micro_batch=4, global_batch=64))
    names = [one.name for one in tried.candidates]
    assert names.index("ddp") < names.index("fsdp") < names.index("fsdp+ac")
    megatron = next(name for name in names if name.startswith("megatron"))
    assert names.index("fsdp+ac") < names.index(megatron) < names.index("zero3-offload")


def test_a_strategy_that_is_asked_for_stands_alone() -> None:
    tried = answer_of(request_of(strategy=strategy_named("zero2")))
    assert [one.name for one in tried.candidates] == ["zero2"]
    with pytest.raises(UserError, match="ZeRO-2 and pipeline"):
        answer_of(request_of(pp=2, strategy=strategy_named("zero2")))


def test_zeropp_is_taken_only_where_it_is_asked_for() -> None:
    slow = request_of(
        model=model_of_params("13B"), gpus=32, global_batch=32, interconnect="ethernet-10"
    )
    tried = answer_of(slow)
    asked = answer_of(replace(slow, strategy=strategy_named("ZeRO++")))
    assert asked.chosen is not None
    assert tried.chosen is not None
    assert asked.chosen.tokens_per_s > 2 * next(
        one.tokens_per_s for one in tried.candidates if one.name == "zero3"
    )
    assert not any(one.setup.zeropp for one in tried.candidates)
    assert any("changes the numbers" in one.message for one in warnings_of(asked.chosen.setup))
    for wrong in ("fsdp+zeropp", "zeropp-offload"):
        with pytest.raises(UserError, match="unknown"):
            strategy_named(wrong)


@pytest.mark.parametrize("kind", [Compression.FP16, Compression.POWERSGD, Compression.ONE_BIT])
def test_gradients_are_compressed_only_where_it_is_asked_for(kind: Compression) -> None:
    slow = request_of(model=model_of_params("1B"), interconnect="ethernet-10")
    tried = answer_of(slow)
    asked = answer_of(replace(slow, strategy=strategy_named(f"DDP+{kind}"))).chosen
    assert asked is not None
    assert asked.name == f"ddp+{kind}"
    plain = next(one for one in tried.candidates if one.name == "ddp")
    assert asked.tokens_per_s > 1.5 * plain.tokens_per_s
    assert not any(one.setup.compression == kind for one in tried.candidates)
    assert any("a model, not measured" in one.message for one in warnings_of(asked.setup))


def test_illegal_ones_are_refused_beside_the_others() -> None:
    tried = answer_of(request_of(pp=2, global_batch=64))
    assert {"zero2", "zero3"} <= {refused.name for refused in tried.refused}
    assert {one.name for one in tried.candidates} >= {"zero1", "megatron"}


def test_every_strategy_trains_the_same_global_batch() -> None:
    tried = answer_of(request_of(model=model_of_params("70B"), gpus=64, global_batch=128))
    assert {one.setup.global_batch for one in tried.candidates} == {128}


def test_changes_really_make_it_fit() -> None:
    tried = answer_of(request_of(model=model_of_params("70B"), micro_batch=4, global_batch=64))
    changes = [
        smallest_change(one.setup, tried.request.fits, per_node=8)
        for one in tried.candidates
        if not one.fits
    ]
    found = [change for change in changes if change is not None]
    assert found
    for change in found:
        assert tried.request.memory(change.setup).fits
        assert problems_of(change.setup) == ()


def test_settings_are_named_where_they_make_up_for_what_is_lacking() -> None:
    def tried(params: str, gpu: str, strategy: str) -> tuple[Candidate, Request]:
        asked = request_of(
            model=model_of_params(params), gpu=gpu_named(gpu), strategy=strategy_named(strategy)
        )
        return answer_of(asked).candidates[0], asked

    ddp, asked = tried("3B", "a100-80", "ddp")
    assert not ddp.fits
    assert [*lowering_settings(ddp.setup, ddp.memory)] == ["gradient_as_bucket_view=True"]
    assert asked.memory(replace(ddp.setup, bucket_view=True)).fits
    zero3, _ = tried("7B", "l40s", "zero3")
    assert [name.split("_")[0] for name in lowering_settings(zero3.setup, zero3.memory)] == [
        "a smaller stage3", "a smaller reduce",
    ]  # fmt: skip
    for strategy, named in (
        ("fsdp1", "limit_all_gathers=True, forward_prefetch=False, backward_prefetch=None"),
        ("fsdp", "no set_modules_to_forward_prefetch, fully_shard on smaller modules"),
    ):
        fsdp, _ = tried("17.5B", "h100", strategy)
        assert [*lowering_settings(fsdp.setup, fsdp.memory)] == [named]
    for params, gpu, strategy in (("70B", "l40s", "zero3"), ("1B", "h100", "zero3"),
                                  ("13B", "a100-80", "fsdp-shard-grad-op")):  # fmt: skip
        one, _ = tried(params, gpu, strategy)
        assert lowering_settings(one.setup, one.memory) == {}


def test_the_number_of_gpus_is_the_smallest() -> None:
    asked = request_of(model=model_of_params("70B"), gpus=8, global_batch=8,
                 checkpointing=Checkpointing.FULL, loss=Loss.FUSED,
                       strategy=strategy_named("zero3"))  # fmt: skip
    (one,) = answer_of(asked).candidates
    assert not one.fits
    change = smallest_change(one.setup, asked.fits, per_node=8)
    assert change is not None
    assert change.flags == f"--gpus {change.setup.gpus}"
    assert not asked.fits(replace(change.setup, gpus=change.setup.gpus - 8))


def test_the_largest_micro_batch_fits_and_twice_of_it_does_not() -> None:
    asked = request_of()
    one = answer_of(asked).chosen
    assert one is not None
    micro = largest_micro_batch(one.setup, asked.fits)
    assert asked.fits(replace(one.setup, micro_batch=micro))
    assert not asked.fits(replace(one.setup, micro_batch=2 * micro))
