"""Time of a step: its parts, how it scales, and published runs that it has to come near."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.accuracy.score import score, summary_of
from bench.accuracy.score_speed import hardware_flops, score_speed
from bench.accuracy.truth_table import parse_rows
from clusterkit.estimate.factors import Calibration
from clusterkit.estimate.machines.gpus import gpu_named
from clusterkit.estimate.setup import (
    Adapter,
    Checkpointing,
    Library,
    Loss,
    Offload,
    Precision,
    Setup,
    Sharding,
)
from clusterkit.estimate.shapes import ModelShape
from clusterkit.estimate.speed.compute import (
    compressing_s,
    model_flops,
    needed_flops,
    work_of,
)
from clusterkit.estimate.speed.step_time import bill_of, mfu_of, scaling, speed_of, utilisation_of
from tests.unit.estimate.test_estimate_communication import SETUPS, SEVEN, setup

LLAMA = ModelShape(
    name="llama-3.1-8b", layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336,
    vocab=128256, exact_params=8_030_261_248,
)  # fmt: skip
GPT3 = ModelShape(
    name="gpt3-175b", layers=96, hidden=12288, heads=96, kv_heads=96, head_dim=128, ffn=49152,
    vocab=51200, tied=True, gated=False,
)  # fmt: skip


def fsdp(**changes: Any) -> Setup:
    usual: dict[str, Any] = {"library": Library.FSDP2, "sharding": Sharding.FULL, "gpus": 8}
    return setup(**(usual | changes))


def step(one: Setup) -> float:
    return speed_of(one).step_s.likely


def test_operations_of_a_token_are_those_of_palm_appendix_b() -> None:
    assert model_flops(SEVEN, 2048) == 6 * 7e9 + 12 * 32 * 4096 * 2048


def test_operations_computed_again_are_those_of_korthikanti() -> None:
    """Equation 8 over 7 with selective checkpointing: 1 + (s / 6h) / (1 + s/6h + V/12hL)."""
    shape, seq = dataclasses.replace(GPT3, exact_params=None), 2048
    one = setup(model=shape, seq=seq, checkpointing=Checkpointing.SELECTIVE)
    ratio = hardware_flops(one) / model_flops(shape, seq)
    whole = 1 + seq / 6 / 12288 + 51200 / 12 / 12288 / 96
    assert ratio == pytest.approx(1 + seq / 18 / 12288 / whole, rel=0.01)
    full = dataclasses.replace(one, checkpointing=Checkpointing.FULL)
    assert hardware_flops(full) / model_flops(shape, seq) == pytest.approx(4 / 3)


def test_adapters_save_the_gradients_of_frozen_weights() -> None:
    whole, lora = work_of(setup()), work_of(setup(adapter=Adapter()))
    assert lora.block_products == pytest.approx(2 / 3 * whole.block_products)
    assert lora.block_attention == whole.block_attention


def test_mfu_of_adapters_counts_no_gradients_of_frozen_weights() -> None:
    lora = setup(adapter=Adapter())
    attention = 12 * 32 * 4096 * lora.seq
    assert needed_flops(setup()) == 6 * 7e9 + attention
    assert needed_flops(lora) == 4 * 7e9 + attention
    again = dataclasses.replace(lora, checkpointing=Checkpointing.FULL)
    assert hardware_flops(again) == pytest.approx(6 * 7e9 + attention * 4 / 3)
    assert mfu_of(lora, 1000) < mfu_of(setup(), 1000)


def test_weights_in_4_bits_are_unpacked_for_each_product() -> None:
    lora, qlora = (
        setup(gpus=1, library=Library.DDP, micro_batch=1, adapter=Adapter(quantized=quantized))
        for quantized in (False, True)
    )
    longer = step(qlora) - step(lora)
    blocks = 32 * (SEVEN.attention_params + SEVEN.mlp_params)
    assert longer == pytest.approx(2 * blocks * 2.516 / 0.8 / 2039e9, rel=0.02)
    many = step(dataclasses.replace(qlora, accumulation=4)) - step(
        dataclasses.replace(lora, accumulation=4)
    )
    assert many == pytest.approx(4 * longer)


def test_the_parts_add_up_to_the_step() -> None:
    speed = speed_of(fsdp(gpus=16, pp=2, accumulation=4, offload_optimizer=Offload.CPU))
    parts = speed.compute_s + speed.bubble_s + speed.exposed_s + speed.offload_s
    assert speed.step_s.likely == pytest.approx(parts)
    assert min(speed.compute_s, speed.bubble_s, speed.exposed_s, speed.offload_s) > 0
    assert speed.step_s.low < speed.step_s.likely < speed.step_s.high
    assert speed.mfu.low < speed.mfu.likely < speed.mfu.high


def test_a_bubble_is_p_minus_1_of_v_m() -> None:
    """Narayanan et al., arXiv:2104.04473, section 2.2."""
    one = setup(gpus=8, pp=8, library=Library.MEGATRON, accumulation=16)
    speed = speed_of(one)
    micro_batches = speed.compute_s
    assert speed.bubble_s == pytest.approx(7 / 16 * micro_batches, rel=0.05)
    interleaved = speed_of(dataclasses.replace(one, vpp=4))
    assert interleaved.bubble_s == pytest.approx(speed.bubble_s / 4)


@pytest.mark.parametrize(
    ("slower", "faster"),
    [
        ({"gpu": gpu_named("a100")}, {"gpu": gpu_named("h100")}),
        ({"checkpointing": Checkpointing.FULL}, {"checkpointing": Checkpointing.NONE}),
        ({"checkpointing": Checkpointing.FULL}, {"checkpointing": Checkpointing.SELECTIVE}),
        ({"compiled": False}, {"compiled": True}),
        ({"loss": Loss.EAGER}, {"loss": Loss.FUSED}),
        ({"flash_attention": False}, {"flash_attention": True}),
        ({"offload_optimizer": Offload.NVME}, {"offload_optimizer": Offload.CPU}),
        ({"offload_optimizer": Offload.CPU}, {"offload_optimizer": Offload.NONE}),
        ({"gpus": 64, "interconnect": "ethernet-10"}, {"gpus": 64, "interconnect": "hdr"}),
    ],
)
def test_what_costs_time_costs_time(slower: dict[str, Any], faster: dict[str, Any]) -> None:
    assert step(fsdp(**slower)) > step(fsdp(**faster))


def test_a_slow_network_is_what_full_sharding_waits_for() -> None:
    speed = speed_of(fsdp(gpus=64, interconnect="ethernet-10"))
    assert speed.exposed_s > 0.8 * speed.step_s.likely
    near = speed_of(
        fsdp(gpus=64, sharding=Sharding.HYBRID, shard_group=8, interconnect="own:gbit=25,nics=1")
    )
    far = speed_of(fsdp(gpus=64, interconnect="own:gbit=25,nics=1"))
    assert near.step_s.likely < far.step_s.likely


def test_small_micro_batches_of_small_models_wait_for_launches() -> None:
    tiny = dataclasses.replace(SEVEN, hidden=256, ffn=1024, heads=4, exact_params=None, head_dim=64)
    few, many = (speed_of(setup(model=tiny, gpus=1, seq=128, micro_batch=b)) for b in (1, 4))
    assert many.step_s.likely < 1.2 * few.step_s.likely


@given(SETUPS)
def test_every_setup_has_a_finite_time(one: Setup) -> None:
    speed = speed_of(one)
    assert 0 < speed.step_s.low <= speed.step_s.likely <= speed.step_s.high < math.inf
    assert 0 < speed.tokens_per_s_per_gpu.likely < math.inf
    assert 0 < speed.mfu.likely < 2
    assert min(speed.compute_s, speed.bubble_s, speed.exposed_s, speed.offload_s) >= 0


@given(SETUPS)
def test_a_network_twice_as_fast_never_slows_a_step(one: Setup) -> None:
    slow = dataclasses.replace(one, interconnect="own:gbit=50,nics=2")
    fast = dataclasses.replace(one, interconnect="own:gbit=100,nics=2")
    assert step(fast) <= step(slow) * (1 + 1e-9)


@given(SETUPS, st.sampled_from([(1, 2, 4, 8), (8, 64, 512, 4096)]))
def test_efficiency_is_about_a_part_of_one(one: Setup, counts: tuple[int, ...]) -> None:
    """What it passes 1 by is what more ranks share: the step of the optimizer."""
    one = dataclasses.replace(one, offload_optimizer=Offload.NONE)
    points = scaling(one, counts)
    assert all(0 < point.efficiency < 1.5 for point in points)
    assert [point.gpus for point in points] == sorted({point.gpus for point in points})
    if points and points[0].gpus <= one.gpus_per_node:
        assert points[0].efficiency == 1


def test_a_slow_network_shows_where_the_curve_starts_beyond_a_node() -> None:
    slow, fast = (
        scaling(fsdp(interconnect=network), (16, 32, 64)) for network in ("ethernet-10", "hdr")
    )
    assert all(point.efficiency < 0.1 for point in slow)
    assert all(point.efficiency > 0.9 for point in fast)


def test_quantizing_takes_what_its_bytes_take_at_least() -> None:
    """By hand: 6 + 9 / 8 + 5 / 32 bytes for each of 7e9 parameters, at 80 % of 2,039 GB/s."""
    one = setup(gpu=gpu_named("a100-80"), gpus=32, sharding=Sharding.FULL, zeropp=True)
    known = compressing_s(one)
    assert known.low == pytest.approx(7e9 * 7.28125 / (0.8 * 2039e9))
    assert known.high == pytest.approx(5 * known.low)
    assert known.low < known.likely < known.high
    assert compressing_s(replace(one, accumulation=3)).low == pytest.approx(3 * known.low)
    assert compressing_s(replace(one, zeropp=False)).high == 0
    speed, low_high = speed_of(one), one.gpu.architecture.rate
    rest = speed.step_s.likely - known.likely
    assert speed.step_s.low == pytest.approx((rest + known.low) / low_high[1])
    assert speed.step_s.high == pytest.approx((rest + known.high) / low_high[0])
    without = speed_of(replace(one, zeropp=False)).compute_s
    assert speed.compute_s == pytest.approx(without + known.likely)


@pytest.mark.parametrize(
    ("nics", "tokens", "estimated", "published"),
    [(1, 1024, 2.2, 2.2), (1, 2048, 1.5, 2.2), (4, 1024, 1.0, 1.36), (4, 2048, 1.0, 1.29)],
)
def test_zeropp_is_not_told_faster_than_it_was_published(
    nics: int, tokens: int, estimated: float, published: float
) -> None:
    """384 V100s in nodes of 16, NICs of 100 Gbit/s (DeepSpeed, blogs/zeropp); what docs say."""
    gpt = ModelShape(
        name="18B", layers=40, hidden=6144, heads=32, kv_heads=32, head_dim=192, ffn=4 * 6144,
        vocab=50304, gated=False, biases=True, tied=True,
    )  # fmt: skip
    zero3 = setup(
        model=gpt, gpu=gpu_named("v100-32"), gpus=384, gpus_per_node=16, seq=1024,
        micro_batch=tokens // 1024, precision=Precision.FP16, sharding=Sharding.FULL,
        checkpointing=Checkpointing.FULL, interconnect=f"custom:gbit=100,nics={nics}",
    )  # fmt: skip
    factor = step(zero3) / step(replace(zero3, zeropp=True))
    assert factor == pytest.approx(estimated, abs=0.05)
    assert factor < published


def test_full_sharding_over_many_nodes_loses_to_one_node() -> None:
    points = scaling(fsdp(micro_batch=2, interconnect="1xroce-100"), (8, 16, 64))
    assert points[0].efficiency > points[1].efficiency > points[2].efficiency
    assert points[2].tokens_per_s > points[0].tokens_per_s


def test_counts_that_the_model_does_not_divide_are_left_out() -> None:
    points = scaling(setup(tp=4, library=Library.MEGATRON), (1, 4, 6, 8))
    assert [point.gpus for point in points] == [4, 8]


def test_a_budget_of_tokens_has_a_duration_and_a_price() -> None:
    one = fsdp(gpus=64)
    speed = speed_of(one)
    bill = bill_of(one, speed, 1e12, price=2.0)
    rate = speed.tokens_per_s_per_gpu.likely
    assert bill.gpu_hours.likely == pytest.approx(1e12 / rate / 3600)
    assert bill.days.likely == pytest.approx(1e12 / rate / 64 / 86400)
    assert bill.price is not None
    assert bill.price.high == pytest.approx(2 * bill.gpu_hours.high)
    assert bill_of(one, speed, 1e12).price is None


@given(SETUPS, st.floats(0.3, 3))
def test_a_measured_step_is_met(one: Setup, factor: float) -> None:
    one = dataclasses.replace(one, offload_optimizer=Offload.NONE)
    usual = speed_of(one)
    slowed = speed_of(one, calibration=Calibration(utilisation_scale=factor))
    found = utilisation_of(one, slowed.step_s.likely)
    again = speed_of(one, calibration=Calibration(utilisation_scale=found, measured_step=True))
    assert again.step_s.likely == pytest.approx(slowed.step_s.likely, rel=1e-6)
    width = again.step_s.high / again.step_s.low
    assert width < usual.step_s.high / usual.step_s.low


def test_a_generation_with_few_published_runs_has_a_wide_interval() -> None:
    known = Calibration(measured_step=True)
    for calibration in (None, known):
        widths = {}
        for name in ("a100", "h100", "v100", "4090", "b200", "mi300x"):
            found = speed_of(fsdp(gpu=gpu_named(name)), calibration=calibration).step_s
            widths[name] = found.high / found.low
        assert widths["a100"] < widths["h100"] < 1.6
        assert min(widths[name] for name in ("v100", "4090", "b200", "mi300x")) > 2


def test_hopper_is_as_fast_as_its_memory_feeds_it() -> None:
    cards = ("h100", "gh200", "h200", "GH200-141GB")
    steps = [step(fsdp(gpu=gpu_named(name))) for name in cards]
    assert steps == sorted(steps, reverse=True)


def test_a_calibration_of_another_gpu_says_nothing() -> None:
    other = Calibration(utilisation_scale=0.5, gpu="H100-SXM5-80GB")
    assert speed_of(fsdp(), calibration=other) == speed_of(fsdp())


@pytest.mark.parametrize(
    ("one", "tokens_per_s"),
    [
        # arXiv:2205.05198 table 5, torchtitan docs/performance.md, KempnerForge benchmarks
        (setup(model=GPT3, gpus=64, tp=8, pp=8, vpp=3, library=Library.MEGATRON, seq=2048,
               accumulation=64, checkpointing=Checkpointing.SELECTIVE), 64 * 2048 / 13.75 / 64),
        (fsdp(model=LLAMA, gpus=64, seq=8192, checkpointing=Checkpointing.ALTERNATE), 2904),
        (fsdp(model=LLAMA, gpu=gpu_named("h200"), gpus=4, gpus_per_node=4, micro_batch=4,
              compiled=True, checkpointing=Checkpointing.FULL), 9746),
    ],
)  # fmt: skip
def test_published_runs_are_within_a_fifth(one: Setup, tokens_per_s: float) -> None:
    assert speed_of(one).tokens_per_s_per_gpu.likely == pytest.approx(tokens_per_s, rel=0.2)


HEADER = (
    "id model params config gpu n_gpus strategy layout precision seq micro_batch act_ckpt quantity "
    "value unit basis kind source note"
)
SHAPE = "L=32;h=4096;a=32;kv=8;ffn=14336;V=128256;tied=0;glu=1"


def table(*rows: str) -> str:
    return "\n".join("\t".join(line.split(" ")) for line in (HEADER, *rows))


def row(number: int, gpus: int, quantity: str, value: float, kind: str = "measured") -> str:
    unit = {"step_time": "s", "mem_per_gpu": "GB"}.get(quantity, "")
    return (
        f"runs-{number} Llama-3.1-8B 8030261248 {SHAPE} A100-SXM4-80GB {gpus} FSDP2 "
        f"dp={gpus};gas=1 bf16 8192 1 full {quantity} {value} {unit}  {kind} web "
    )


def test_the_same_run_scores_the_same_in_every_unit() -> None:
    [one] = score_speed(parse_rows(table(row(1, 8, "tokens_per_s_per_gpu", 2500)), source="t"))[0]
    mfu = 100 * mfu_of(one.setup, 2500)
    rows = (
        row(1, 8, "tokens_per_s_total", 20_000),
        row(2, 8, "step_time", 8192 / 2500),
        row(3, 8, "mfu_pct", mfu),
        row(4, 8, "hfu_pct", mfu * 4 / 3),
        row(5, 8, "tflops_per_gpu", mfu / 100 * 312),
        row(6, 8, "samples_per_s", 20_000 / 8192),
    )
    scores, unused = score_speed(parse_rows(table(*rows), source="t"))
    assert not unused
    assert [score.error for score in scores] == [pytest.approx(one.error)] * len(rows)
    assert {score.calibrated for score in scores} == {None}


def test_another_run_of_the_model_and_card_calibrates() -> None:
    rows = (row(1, 8, "tokens_per_s_per_gpu", 1500), row(2, 16, "tokens_per_s_per_gpu", 1490))
    scores, _ = score_speed(parse_rows(table(*rows), source="t"))
    for one in scores:
        assert abs(one.error) > 0.5
        assert one.calibrated_error == pytest.approx(0, abs=0.05)


def test_rows_that_say_no_throughput_are_told_apart() -> None:
    rows = (
        row(1, 8, "mem_per_gpu", 50),
        row(2, 8, "mfu_pct", 40, kind="analytic"),
        row(3, 8, "step_time", 0),
        row(4, 8, "tokens_per_s_per_gpu", 2500).replace(SHAPE, "-"),
    )
    scores, unused = score_speed(parse_rows(table(*rows), source="t"))
    assert {score.row.id for score in scores} <= {"runs-4"}
    assert {"runs-2", "runs-3"} <= unused.keys()
    assert "runs-1" not in unused


def test_the_score_of_throughput_is_told_by_source() -> None:
    rows = (
        row(1, 8, "tokens_per_s_per_gpu", 1500),
        row(2, 16, "tokens_per_s_per_gpu", 1490),
        row(3, 8, "tokens_per_s_per_gpu", 2500).replace("runs-3", "alone-3"),
    )
    found = summary_of(score(parse_rows(table(*rows), source="t")))["throughput_by_source"]
    assert found.keys() == {"runs", "alone"}
    assert found["runs"]["uncalibrated"]["rows"] == found["runs"]["calibrated"]["rows"] == 2
    assert found["runs"]["calibrated"]["median_abs_error"] < 0.05
    assert found["runs"]["uncalibrated"]["median_abs_error"] > 0.5
    assert found["alone"]["calibrated"] == {
        "rows": 0,
        "median_abs_error": None,
        "p90_abs_error": None,
    }
