"""Memory: figures of papers to the digit, published runs, and what must hold of any setup."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bench.accuracy.score_memory import model_state_bytes
from clusterkit.estimate.factors import Calibration
from clusterkit.estimate.machines.gpus import gpu_named
from clusterkit.estimate.memory.activations import in_flight, kept_per_token, saved_of
from clusterkit.estimate.memory.phases import memory_of
from clusterkit.estimate.memory.states import bytes_of, shares_of
from clusterkit.estimate.models.named import model_named
from clusterkit.estimate.results import GIB, Kind, Memory, Term, parts_of, peak_parts_of
from clusterkit.estimate.setup import (
    Adapter,
    Checkpointing,
    Library,
    Loss,
    Offload,
    Optimizer,
    Precision,
    Setup,
    Sharding,
)
from clusterkit.estimate.shapes import ModelShape
from tests.unit.estimate.test_estimate_communication import SETUPS, SEVEN, setup

GB = 1e9
LLAMA3 = ModelShape(
    name="llama-3.1-8b", layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336,
    vocab=128256, exact_params=8_030_261_248,
)  # fmt: skip
LLAMA2 = replace(LLAMA3, name="llama-2-7b", kv_heads=32, ffn=11008, vocab=32000,
                 exact_params=6_738_415_616)  # fmt: skip
GPUS = {name: gpu_named(name) for name in ("a100", "h100", "h200")}


def gpt(layers: int, hidden: int, heads: int) -> ModelShape:
    """Return a GPT without embeddings, as Korthikanti et al. count them."""
    return ModelShape(
        name="gpt", layers=layers, hidden=hidden, heads=heads, kv_heads=heads,
        head_dim=hidden // heads, ffn=4 * hidden, vocab=0, gated=False,
        exact_params=12 * layers * hidden**2,
    )  # fmt: skip


def megatron(shape: ModelShape, **changes: Any) -> Setup:
    usual: dict[str, Any] = {
        "library": Library.MEGATRON, "model": shape, "tp": 8, "gpus": 8, "seq": 2048,
        "precision": Precision.FP16, "flash_attention": False,
    }  # fmt: skip
    return setup(**(usual | changes))


def terms(memory: Memory, phase: str) -> dict[str, Term]:
    return {term.name: term for one in memory.phases if one.name == phase for term in one.terms}


def activations_gib(one: Setup) -> float:
    return terms(memory_of(one), "forward")["activations"].bytes / GIB


@pytest.mark.parametrize(
    ("sharding", "gigabytes"),
    [
        (Sharding.NONE, 120.0),
        (Sharding.OPTIMIZER, 31.4),
        (Sharding.GRADIENTS, 16.6),
        (Sharding.FULL, 1.88),
    ],
)
def test_table_1_of_the_zero_paper(sharding: Sharding, gigabytes: float) -> None:
    shape = replace(SEVEN, exact_params=7_500_000_000)
    one = setup(model=shape, gpus=64, sharding=sharding)
    assert model_state_bytes(one) / GB == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("library", "precision", "sharding", "each"),
    [
        (Library.DEEPSPEED, Precision.BF16, Sharding.FULL, 16),
        (Library.FSDP2, Precision.AMP_BF16, Sharding.FULL, 16),
        (Library.FSDP2, Precision.PURE_BF16, Sharding.FULL, 8),
        (Library.DDP, Precision.AMP_FP16, Sharding.NONE, 16),
        (Library.DDP, Precision.FP32, Sharding.NONE, 16),
        (Library.MEGATRON, Precision.BF16, Sharding.NONE, 18),
    ],
)
def test_bytes_of_a_parameter_by_library(
    library: Library, precision: Precision, sharding: Sharding, each: int
) -> None:
    one = setup(library=library, precision=precision, sharding=sharding, gpus=1)
    kept = bytes_of(one)
    assert kept.params + kept.optimizer + kept.gradients == each
    assert model_state_bytes(one) == each * 7e9


def test_megatron_divides_12_of_its_18_bytes() -> None:
    one = megatron(gpt(48, 6144, 64), gpus=64, sharding=Sharding.OPTIMIZER)
    params = one.model.params / 8
    assert model_state_bytes(one) == pytest.approx((6 + 12 / 8) * params)


@pytest.mark.parametrize(
    ("shape", "pp", "gib"),
    [
        (gpt(48, 6144, 64), 1, 45.5625),
        (gpt(96, 12288, 96), 8, 45.5625),
        (gpt(128, 25600, 160), 64, 32.959),
    ],
)
def test_states_of_korthikanti_figure_1(shape: ModelShape, pp: int, gib: float) -> None:
    one = megatron(replace(shape, norms=0), gpus=8 * pp, pp=pp, accumulation=pp)
    blocks = shape.layers // pp * 12 * shape.hidden**2 / 8
    assert model_state_bytes(one) / GIB == pytest.approx(gib, rel=1e-3)
    assert 18 * blocks / GIB == pytest.approx(gib, rel=1e-4)


@pytest.mark.parametrize(
    ("shape", "changes", "gib"),
    [
        (gpt(48, 6144, 64), {"micro_batch": 4, "checkpointing": Checkpointing.SELECTIVE}, 9.5625),
        (gpt(105, 20480, 128), {"pp": 35, "vpp": 3, "sequence_parallel": False}, 114.0234),
        (gpt(128, 25600, 160), {"pp": 64, "sequence_parallel": False}, 131.25),
    ],
)
def test_activations_of_korthikanti_figure_1(
    shape: ModelShape, changes: dict[str, Any], gib: float
) -> None:
    pp = changes.get("pp", 1)
    one = megatron(shape, gpus=8 * pp, accumulation=8 * pp, **changes)
    assert activations_gib(one) == pytest.approx(gib, rel=1e-6)


@pytest.mark.parametrize(
    ("shape", "sequence_parallel", "checkpointing", "part"),
    [
        (gpt(48, 6144, 64), True, Checkpointing.SELECTIVE, 16.18),
        (gpt(96, 12288, 96), False, Checkpointing.SELECTIVE, 56.53),
        (gpt(96, 12288, 96), False, Checkpointing.FULL, 8.71),
        (gpt(105, 20480, 128), True, Checkpointing.NONE, 58.31),
        (gpt(105, 20480, 128), True, Checkpointing.SELECTIVE, 20.27),
    ],
)
def test_activations_of_korthikanti_figure_7(
    shape: ModelShape, *, sequence_parallel: bool, checkpointing: Checkpointing, part: float
) -> None:
    """Percent of what tensor parallelism alone keeps (read off the figure)."""
    alone = megatron(shape, sequence_parallel=False)
    other = replace(alone, sequence_parallel=sequence_parallel, checkpointing=checkpointing)
    assert 100 * kept_per_token(other) / kept_per_token(alone) == pytest.approx(part, abs=0.05)


def test_a_gpt_block_keeps_34_s_b_h() -> None:
    saved = saved_of(megatron(gpt(1, 1024, 8), tp=1, gpus=1))
    assert saved.norms + saved.attention + saved.products == 34 * 1024
    assert saved.scores == 5 * 8 * 2048


@pytest.mark.parametrize(("shape", "units"), [(LLAMA3, 53.0), (LLAMA2, 49.5)])
def test_a_llama_block_keeps_what_its_trace_does(shape: ModelShape, units: float) -> None:
    """MemTracker of torch 2.13 on the blocks of transformers, in hidden widths."""
    assert kept_per_token(setup(model=shape)) == units * 4096


def test_a_traced_block_is_preferred() -> None:
    traced = replace(LLAMA3, saved_bytes_per_token=300_000.0)
    assert kept_per_token(setup(model=traced)) == 300_000.0


def test_full_checkpointing_keeps_one_hidden_state() -> None:
    one = setup(model=LLAMA3, checkpointing=Checkpointing.FULL)
    assert kept_per_token(one) == 2 * 4096
    assert kept_per_token(replace(one, checkpointing=Checkpointing.NONE)) > 25 * 2 * 4096
    half = replace(one, checkpointing=Checkpointing.ALTERNATE)
    assert kept_per_token(half) == (53 + 2) / 2 * 4096


@pytest.mark.parametrize(
    ("changes", "waiting"),
    [
        ({"pp": 8, "accumulation": 64}, 8),
        ({"pp": 8, "accumulation": 3}, 3),
        ({"pp": 8, "vpp": 3, "accumulation": 64}, 8 * (1 + 7 / 24)),
        ({"pp": 1}, 1),
    ],
)
def test_micro_batches_that_wait_in_a_pipeline(changes: dict[str, Any], waiting: float) -> None:
    one = megatron(gpt(48, 6144, 64), gpus=64, **changes)
    assert in_flight(one, first=True) == pytest.approx(waiting)
    assert in_flight(one, first=False) == 1


@pytest.mark.parametrize(
    ("changes", "gib"),
    [
        ({"gpus": 2, "micro_batch": 2, "accumulation": 4}, 62.4),
        ({"gpus": 4, "micro_batch": 8, "accumulation": 4}, 81.0),
        ({"gpus": 32, "micro_batch": 4, "accumulation": 4}, 51.3),
        ({"gpus": 16, "micro_batch": 4, "accumulation": 2, "tp": 4}, 29.4),
    ],
)
def test_runs_of_kempnerforge(changes: dict[str, Any], gib: float) -> None:
    """KempnerForge benchmarks/mfu_scaling and config_validation: max_memory_allocated on H200."""
    one = setup(
        model=LLAMA3, gpu=GPUS["h200"], gpus_per_node=4, library=Library.FSDP2,
        sharding=Sharding.FULL, precision=Precision.PURE_BF16, checkpointing=Checkpointing.FULL,
        no_sync=True, fp32_logits=False, loss_parallel=False, split_embedding=False, **changes,
    )  # fmt: skip
    assert memory_of(one).allocated / GIB == pytest.approx(gib, rel=0.015)


def test_the_first_stage_of_a_pipeline_where_rank_0_logs_it() -> None:
    """The same: 70B in 4 stages of 4 ranks; parameters stay gathered, gradients whole."""
    shape = replace(
        LLAMA3, layers=80, hidden=8192, heads=64, ffn=28672, exact_params=70_553_706_496
    )
    one = setup(
        model=shape, gpu=GPUS["h200"], gpus=32, gpus_per_node=4, library=Library.FSDP2,
        sharding=Sharding.FULL, precision=Precision.PURE_BF16, checkpointing=Checkpointing.FULL,
        no_sync=True, fp32_logits=False, loss_parallel=False, split_embedding=False,
        sequence_parallel=False, tp=4, pp=4, accumulation=4,
    )  # fmt: skip
    memory = memory_of(one, margin=0.0, first_stage=True)
    assert memory.allocated / GIB == pytest.approx(51.0, rel=0.015)
    assert memory.allocated <= memory_of(one).allocated


@pytest.mark.parametrize(("seq", "gib"), [(8192, 16.3), (65536, 37.5), (262144, 124.5)])
def test_long_sequences_under_zero_3(seq: int, gib: float) -> None:
    """stas00/ml-engineering: Llama 3.1 8B, optimizer offloaded, Liger; max_memory_reserved."""
    one = setup(
        model=LLAMA3, gpu=GPUS["h200"], gpus=8, sharding=Sharding.FULL, seq=seq,
        checkpointing=Checkpointing.FULL, loss=Loss.FUSED, offload_optimizer=Offload.CPU,
    )  # fmt: skip
    assert memory_of(one).reserved.likely / GIB == pytest.approx(gib, rel=0.05)


def test_the_binding_tensor_of_accumulation_without_sync_is_named() -> None:
    one = setup(
        library=Library.FSDP2, sharding=Sharding.FULL, precision=Precision.PURE_BF16, gpus=32,
        accumulation=4, no_sync=True, checkpointing=Checkpointing.FULL,
    )  # fmt: skip
    memory = memory_of(one)
    assert memory.binding.name == "whole gradients in fp32 (no_sync)"
    assert memory.binding.bytes == 4 * 7e9
    each_time = memory_of(replace(one, no_sync=False))
    assert memory.allocated - each_time.allocated > 0.9 * 4 * 7e9


def test_whole_gradients_stay_on_the_gpu_until_they_are_reduced() -> None:
    one = setup(
        library=Library.FSDP2, sharding=Sharding.FULL, precision=Precision.AMP_BF16, gpus=8,
        accumulation=4, no_sync=True, offload_optimizer=Offload.CPU, offload_params=Offload.CPU,
    )  # fmt: skip
    name = "whole gradients in fp32 (no_sync)"
    assert terms(memory_of(one), "backward")[name].bytes == 4 * 7e9
    assert not [term for term in memory_of(one).phases[-1].terms if term.kind is Kind.GRADIENTS]
    here = replace(one, offload_optimizer=Offload.NONE, offload_params=Offload.NONE)
    last = terms(memory_of(here), "optimizer step")
    assert name not in last
    assert last["gradients"].bytes == 4 * 7e9 / 8


def test_phases_are_named_in_order_and_hold_what_they_say() -> None:
    memory = memory_of(setup(sharding=Sharding.FULL))
    assert [phase.name for phase in memory.phases] == [
        "initialisation", "forward", "loss", "backward", "accumulation", "optimizer step",
    ]  # fmt: skip
    assert "logits" in terms(memory, "loss")
    assert "logits" not in terms(memory, "backward")
    assert "activations" not in terms(memory, "optimizer step")
    for phase in memory.phases:
        for term in phase.terms:
            assert term.bytes > 0
            assert term.formula
            assert term.source


def test_eager_loss_needs_most_and_a_fused_one_nothing() -> None:
    one = setup(
        model=LLAMA3, micro_batch=4, checkpointing=Checkpointing.FULL, gpus=64,
        sharding=Sharding.FULL,
    )  # fmt: skip
    needs = [memory_of(replace(one, loss=loss)).allocated for loss in Loss]
    eager, chunked, compiled, fused = needs
    assert eager > compiled >= chunked >= fused
    logits = terms(memory_of(one), "loss")["logits"]
    assert logits.bytes == 14 * 4 * 4096 * 128256


def test_megatron_fuses_the_loss_but_not_the_head() -> None:
    one = megatron(LLAMA3, tp=2, gpus=8, micro_batch=4, checkpointing=Checkpointing.FULL)
    eager, fused = (
        terms(memory_of(replace(one, loss=loss)), "loss")["logits"].bytes
        for loss in (Loss.EAGER, Loss.FUSED)
    )
    logits = 4 * one.seq * 128256 / 2
    assert (eager, fused) == (10 * logits, 8 * logits)


def test_the_head_is_on_the_last_stage_and_the_embedding_on_the_first() -> None:
    wide = replace(gpt(8, 1024, 8), vocab=500_000, exact_params=None)
    one = megatron(wide, gpus=16, pp=2, accumulation=2, micro_batch=8)
    assert memory_of(one).binding.name == "logits"
    narrow = replace(wide, vocab=1000)
    assert memory_of(replace(one, model=narrow)).peak.name == "backward"


def test_zeropp_keeps_a_second_copy_in_each_node() -> None:
    one = setup(gpus=32, sharding=Sharding.FULL)
    plain, more = memory_of(one), memory_of(replace(one, zeropp=True))
    copy = terms(more, "forward")["second copy of parameters"]
    assert copy.bytes == pytest.approx(2 * 7e9 / 8)
    for before, after in zip(plain.phases[1:], more.phases[1:], strict=True):
        assert after.bytes - before.bytes == pytest.approx(copy.bytes)
    assert parts_of(more)[Kind.PARAMETERS] == pytest.approx(2 * 7e9 * (1 / 32 + 1 / 8))


def test_what_is_offloaded_needs_the_host_instead() -> None:
    one = setup(gpus=8, sharding=Sharding.FULL, checkpointing=Checkpointing.FULL)
    optimizer = replace(one, offload_optimizer=Offload.CPU)
    both = replace(optimizer, offload_params=Offload.CPU)
    disks = replace(one, offload_optimizer=Offload.NVME, offload_params=Offload.NVME)
    states = [model_state_bytes(case) for case in (one, optimizer, both)]
    assert states[0] > states[1] > states[2] == 0
    assert memory_of(one).host_bytes == 0
    assert memory_of(optimizer).host_bytes == 16 * 7e9 * 1.5
    assert memory_of(disks).nvme_bytes == 18 * 7e9
    buffers = 4 * 4 * 7e9 / 8 + 2 * 5e8
    assert memory_of(disks).host_bytes == pytest.approx(8 * buffers), "pinned, on each rank"


def test_adapters_need_little_beside_frozen_weights() -> None:
    one = setup(
        model=LLAMA3, gpus=1, library=Library.DDP, precision=Precision.PURE_BF16,
        checkpointing=Checkpointing.FULL, adapter=Adapter(rank=8),
    )  # fmt: skip
    states = model_state_bytes(one)
    assert 2 * 8.03e9 < states < 2.1 * 8.03e9
    quantized = replace(one, adapter=Adapter(rank=8, quantized=True))
    assert model_state_bytes(quantized) < 0.4 * states
    more = replace(one, adapter=Adapter(rank=8, on_embeddings=True))
    copies = 2 * 128256 * 4096
    assert model_state_bytes(more) == pytest.approx(states + 8 * copies)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.AMP_BF16])
def test_frozen_weights_are_as_wide_as_trained_ones(precision: Precision) -> None:
    one = setup(
        model=LLAMA3, gpus=1, library=Library.DDP, precision=precision, adapter=Adapter(rank=8)
    )
    memory = memory_of(one)
    assert terms(memory, "forward")["frozen weights"].bytes == pytest.approx(4 * 8.03e9, rel=1e-3)
    casts = terms(memory, "forward").get("gathered parameters")
    if precision is Precision.FP32:
        assert casts is None
    else:
        assert casts is not None
        assert casts.bytes == pytest.approx(2 * (8.03e9 - 128256 * 4096), rel=1e-3)
        again = memory_of(replace(one, checkpointing=Checkpointing.FULL))
        assert terms(again, "forward")["gathered parameters"].bytes < 0.1 * casts.bytes


def test_optimizers_keep_what_they_keep() -> None:
    base = setup(library=Library.DDP, precision=Precision.PURE_BF16, gpus=1)
    needs = {kind: bytes_of(replace(base, optimizer=kind)).moments for kind in Optimizer}
    assert needs == {
        Optimizer.ADAMW: 4, Optimizer.ADAMW_8BIT: 2 + 6 * 32000 * 4096 / 7e9,
        Optimizer.PAGED_ADAMW_8BIT: 0, Optimizer.ADAFACTOR: 0, Optimizer.SGD: 2,
    }  # fmt: skip
    assert bytes_of(base).step == 2
    assert bytes_of(replace(base, step_copies=0)).step == 0
    assert memory_of(replace(base, optimizer=Optimizer.PAGED_ADAMW_8BIT)).host_bytes == 14e9


def test_experts_are_divided_among_ranks() -> None:
    moe = replace(LLAMA3, experts=8, active_experts=2, exact_params=None)
    one = megatron(moe, tp=1, gpus=8, flash_attention=True)
    assert model_state_bytes(replace(one, ep=8)) < 0.3 * model_state_bytes(one)
    assert kept_per_token(one) > kept_per_token(replace(one, model=LLAMA3))


@pytest.mark.parametrize(
    ("library", "sharding"),
    [(Library.FSDP2, Sharding.FULL), (Library.MEGATRON, Sharding.OPTIMIZER)],
)
def test_an_expert_of_few_ranks_is_sharded_over_fewer(library: Library, sharding: Sharding) -> None:
    """Each of the `ep` groups of experts has `dp / ep` copies: sharded states stay as they were."""
    one = setup(model=model_named("mixtral-8x7b"), library=library, sharding=sharding, gpus=64)
    shares = [memory_of(replace(one, ep=ep)).by_kind()[Kind.OPTIMIZER] for ep in (1, 2, 8)]
    assert shares == pytest.approx([shares[0]] * 3)
    gathered = [terms(memory_of(replace(one, ep=ep)), "forward") for ep in (1, 8)]
    if library is Library.FSDP2:
        whole, part = (found["gathered parameters"].bytes for found in gathered)
        assert part < whole / 2
    else:
        whole, part = (found["parameters"].bytes for found in gathered)
        assert part < whole / 4


def test_blocks_without_experts_are_not_divided_by_ep() -> None:
    moe = model_named("deepseek-v3")
    dense = replace(moe, dense_layers=moe.layers, exact_params=None)
    one = setup(model=dense, library=Library.MEGATRON, gpus=8)
    assert model_state_bytes(replace(one, ep=8)) == model_state_bytes(one)


def test_deepspeed_has_the_whole_model_first_where_that_fits() -> None:
    one = setup(gpus=8, sharding=Sharding.FULL)
    assert "the whole model, before it is divided" in terms(memory_of(one), "initialisation")
    large = replace(one, model=replace(SEVEN, exact_params=175_000_000_000))
    assert "parameters" in terms(memory_of(large), "initialisation")


def test_an_interval_lies_around_its_likely_figure() -> None:
    for gpus in (1, 8):
        memory = memory_of(setup(gpus=gpus, sharding=Sharding.FULL))
        for interval in (memory.reserved, memory.device):
            assert interval.low <= interval.likely <= interval.high
        assert memory.allocated < memory.reserved.likely < memory.device.likely
        assert memory.device.likely - memory.reserved.likely == pytest.approx(
            (0.8 if gpus == 1 else 2.0) * GIB
        )


def test_the_margin_is_taken_from_the_gpu() -> None:
    one = setup()
    assert memory_of(one).limit == pytest.approx(one.gpu.usable_bytes * 0.92)
    assert memory_of(one, margin=0).limit == one.gpu.usable_bytes


def test_a_measurement_replaces_what_is_usual() -> None:
    one = setup(sharding=Sharding.FULL)
    usual = memory_of(one)
    twice = memory_of(one, calibration=Calibration(activation_scale=2.0))
    assert terms(twice, "forward")["activations"].bytes == pytest.approx(
        2 * terms(usual, "forward")["activations"].bytes
    )
    assert terms(twice, "forward")["parameters"] == terms(usual, "forward")["parameters"]
    exact = memory_of(one, calibration=Calibration(reserved_ratio=1.2, context_bytes=3e9))
    assert exact.reserved.likely == pytest.approx(1.2 * exact.allocated)
    assert exact.device.likely == pytest.approx(exact.reserved.likely + 3e9)


@given(SETUPS)
def test_any_setup_has_a_peak_whose_terms_add_up(one: Setup) -> None:
    memory = memory_of(one)
    assert memory.allocated == pytest.approx(sum(memory.by_kind().values()))
    assert memory.allocated >= max(phase.bytes for phase in memory.phases)
    assert memory.binding.bytes <= memory.allocated
    assert memory.reserved.low <= memory.reserved.likely <= memory.reserved.high


@given(SETUPS)
def test_parts_add_up_at_the_peak_and_as_people_count(one: Setup) -> None:
    memory = memory_of(one)
    parts, peak = peak_parts_of(memory), memory.by_kind()
    assert sum(parts.values()) == pytest.approx(memory.device.likely)
    assert all(parts[kind] == peak[kind] for kind in Kind if kind is not Kind.TEMPORARY)
    assert parts[Kind.TEMPORARY] >= peak[Kind.TEMPORARY]
    counted = parts_of(memory)
    assert sum(counted.values()) == pytest.approx(memory.device.likely)
    assert min(counted.values()) >= 0


@given(SETUPS)
def test_more_ranks_never_need_more_states_on_each(one: Setup) -> None:
    more = replace(one, gpus=2 * one.gpus)
    assert model_state_bytes(more) <= model_state_bytes(one) * (1 + 1e-9)


@given(SETUPS)
def test_each_stage_of_sharding_needs_no_more_than_the_one_before(one: Setup) -> None:
    assume(one.adapter is None)
    one = replace(one, offload_optimizer=Offload.NONE, shard_group=None)
    stages = (Sharding.NONE, Sharding.OPTIMIZER, Sharding.GRADIENTS, Sharding.FULL)
    needs = [model_state_bytes(replace(one, sharding=sharding)) for sharding in stages]
    assert needs == sorted(needs, reverse=True)


@given(SETUPS)
def test_sharded_parts_add_up_to_the_whole(one: Setup) -> None:
    """The shards of all ranks of a group are what one rank alone would hold."""
    whole, each = replace(one, sharding=Sharding.NONE), bytes_of(one)
    shares = shares_of(one)
    for share in (shares.params, shares.gradients, shares.optimizer):
        assert share == 1 or share * max(1, one.shard_ranks) == pytest.approx(1)
    assert shares_of(whole) == shares_of(replace(whole, gpus=8 * whole.gpus))
    assert each.optimizer == each.master + each.moments


@given(SETUPS, st.sampled_from([Precision.FP32, Precision.PURE_BF16]))
def test_zero_3_is_fully_sharded_fsdp_under_one_byte_model(
    one: Setup, precision: Precision
) -> None:
    zero = replace(one, library=Library.DEEPSPEED, sharding=Sharding.FULL, precision=precision)
    assert model_state_bytes(zero) == model_state_bytes(replace(zero, library=Library.FSDP2))


@given(SETUPS)
def test_checkpointing_never_keeps_more(one: Setup) -> None:
    kept = {how: kept_per_token(replace(one, checkpointing=how)) for how in Checkpointing}
    assert kept[Checkpointing.FULL] <= kept[Checkpointing.ALTERNATE] <= kept[Checkpointing.NONE]
    assert kept[Checkpointing.SELECTIVE] <= kept[Checkpointing.NONE] * (1 + 1e-9)


def test_kinds_of_terms_are_what_they_are_called() -> None:
    memory = memory_of(setup(library=Library.DDP, precision=Precision.AMP_BF16, gpus=8))
    kinds = {term.name: term.kind for phase in memory.phases for term in phase.terms}
    assert kinds["buckets of DDP"] is Kind.GRADIENTS
    assert kinds["gathered parameters"] is Kind.TEMPORARY
    assert kinds["logits"] is Kind.ACTIVATIONS
    seen = replace(setup(library=Library.DDP, gpus=8), bucket_view=True)
    assert "buckets of DDP" not in terms(memory_of(seen), "forward")
