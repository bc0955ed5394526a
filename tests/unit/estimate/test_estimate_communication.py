"""Bytes of the identities in the papers, and times that a network can keep."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.core.errors import UserError
from clusterkit.estimate.machines.gpus import gpu_named
from clusterkit.estimate.machines.interconnects import (
    NETWORKS,
    Fabric,
    group_of,
    interconnect_named,
    network_of,
)
from clusterkit.estimate.memory.states import owned_params, params_per_rank
from clusterkit.estimate.models.named import model_named
from clusterkit.estimate.setup import (
    Adapter,
    Checkpointing,
    Library,
    Offload,
    Precision,
    Setup,
    Sharding,
)
from clusterkit.estimate.shapes import ModelShape
from clusterkit.estimate.speed.communication import transfers_of

MIB = 1 << 20

SEVEN = ModelShape(
    name="7B", layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn=11008, vocab=32000,
    exact_params=7_000_000_000,
)  # fmt: skip


def setup(**changes: Any) -> Setup:
    usual: dict[str, Any] = {
        "model": SEVEN, "gpu": gpu_named("a100"), "gpus": 4, "gpus_per_node": 8,
        "library": Library.DEEPSPEED,
    }  # fmt: skip
    return Setup(**(usual | changes))


def sent(**changes: Any) -> float:
    return sum(transfer.bytes for transfer in transfers_of(setup(**changes)))


def sharded(**changes: Any) -> float:
    """Return what ZeRO-3 sends: everything in 16 bits."""
    return sent(sharding=Sharding.FULL, **changes)


def test_zeropp_sends_what_its_paper_says() -> None:
    """Table 1 of arXiv:2306.10209: M / 2 forward, nothing backward, M / 4, between nodes."""
    four = setup(gpus=32, sharding=Sharding.FULL, zeropp=True, accumulation=2)
    found = {transfer.name: transfer for transfer in transfers_of(four)}
    told: dict[str, Any] = {name: (one.group, one.bytes / 2e9) for name, one in found.items()}
    assert told == {
        "gather parameters in 8 bits (forward)": ("shard", pytest.approx(31 / 32 * 14 / 2)),
        "gather parameters (backward)": ("node", pytest.approx(7 / 8 * 14)),
        "reduce-scatter gradients in 4 bits": ("node", pytest.approx(7 / 8 * 14 / 4)),
        "reduce-scatter gradients in 4 bits, between nodes": (
            "replicas", pytest.approx(3 / 4 * 14 / 4 / 8),
        ),
    }  # fmt: skip
    assert [one.during for one in found.values()] == ["forward"] + 3 * ["backward"]
    slow, fast = (
        {t.name: t.seconds for t in transfers_of(replace(four, interconnect=name))}
        for name in ("ethernet-10", "infiniband-ndr")
    )
    within = [name for name in slow if slow[name] == fast[name]]
    assert within == ["gather parameters (backward)", "reduce-scatter gradients in 4 bits"]


def test_a_single_gpu_sends_nothing() -> None:
    for sharding in Sharding:
        assert transfers_of(setup(gpus=1, sharding=sharding)) == ()


@pytest.mark.parametrize(
    ("sharding", "gigabytes"),
    [
        (Sharding.NONE, 21.0),
        (Sharding.OPTIMIZER, 21.0),
        (Sharding.GRADIENTS, 21.0),
        (Sharding.FULL, 31.5),
    ],
)
def test_volumes_are_those_of_zero_section_7(sharding: Sharding, gigabytes: float) -> None:
    assert sent(sharding=sharding) == pytest.approx(gigabytes * 1e9)


@given(st.integers(2, 4096))
def test_full_sharding_sends_half_as_much_again_as_ddp(ranks: int) -> None:
    ddp = sent(library=Library.DDP, gpus=ranks)
    assert sharded(gpus=ranks) == pytest.approx(1.5 * ddp)
    assert sharded(gpus=ranks) < 3 * 2 * SEVEN.params


@pytest.mark.parametrize(
    ("library", "sharding", "precision", "g", "gigabytes"),
    [
        (Library.DDP, Sharding.NONE, Precision.PURE_BF16, 2, 21.0),
        (Library.DDP, Sharding.NONE, Precision.AMP_BF16, 4, 42.0),
        (Library.DDP, Sharding.NONE, Precision.FP32, 4, 42.0),
        (Library.DEEPSPEED, Sharding.GRADIENTS, Precision.AMP_BF16, 2, 21.0),
        (Library.DEEPSPEED, Sharding.FULL, Precision.BF16, 2, 31.5),
        (Library.FSDP2, Sharding.FULL, Precision.AMP_BF16, 4, 42.0),
        (Library.FSDP1, Sharding.GRADIENTS, Precision.AMP_FP16, 4, 31.5),
        (Library.FSDP2, Sharding.FULL, Precision.FP32, 4, 63.0),
        (Library.MEGATRON, Sharding.NONE, Precision.BF16, 4, 42.0),
        (Library.MEGATRON, Sharding.OPTIMIZER, Precision.BF16, 4, 31.5),
    ],
)
def test_gradients_travel_as_the_library_keeps_or_casts_them(
    library: Library, sharding: Sharding, precision: Precision, g: int, gigabytes: float
) -> None:
    """7e9 parameters on 4 ranks: 3/4 of 14 GB in 16 bits, or of 28 in fp32, each way."""
    found = transfers_of(setup(library=library, sharding=sharding, precision=precision))
    assert sum(transfer.bytes for transfer in found) == pytest.approx(gigabytes * 1e9)
    assert any(f"g = {g}" in transfer.formula for transfer in found)


@given(st.integers(2, 2048), st.sampled_from(Sharding))
def test_more_ranks_send_more_each_but_never_beyond_the_limit(ranks: int, how: Sharding) -> None:
    fewer, more = sent(gpus=ranks, sharding=how), sent(gpus=2 * ranks, sharding=how)
    assert fewer < more < 3 * 2 * SEVEN.params


@pytest.mark.parametrize(
    ("library", "sharding", "no_sync", "times"),
    [
        (Library.DDP, Sharding.NONE, False, 1),
        (Library.DEEPSPEED, Sharding.OPTIMIZER, False, 1),
        (Library.DEEPSPEED, Sharding.GRADIENTS, False, (4 + 1) / 2),
        (Library.FSDP2, Sharding.GRADIENTS, False, 4),
        (Library.FSDP2, Sharding.GRADIENTS, True, 1),
        (Library.FSDP2, Sharding.FULL, False, 4),
        # Parameters in 16 bits twice for each micro batch, gradients in fp32 once.
        (Library.FSDP2, Sharding.FULL, True, (2 * 4 + 2) / 4),
        (Library.DEEPSPEED, Sharding.FULL, False, 4),
    ],
)
def test_accumulation_repeats_what_each_library_repeats(
    library: Library, sharding: Sharding, no_sync: bool, times: float
) -> None:
    once = sent(library=library, sharding=sharding)
    four = sent(library=library, sharding=sharding, accumulation=4, no_sync=no_sync)
    assert four == pytest.approx(times * once)


def test_hybrid_sharding_sends_little_between_nodes() -> None:
    hybrid = setup(library=Library.FSDP2, sharding=Sharding.HYBRID, gpus=32, shard_group=8)
    [between] = [found for found in transfers_of(hybrid) if found.group == "replicas"]
    assert between.bytes == pytest.approx(2 * (3 / 4) * 4 * SEVEN.params / 8)


def test_gradients_in_fp32_are_twice_as_many_bytes() -> None:
    assert sent(fp32_gradients=True) == 2 * sent()
    assert sent(precision=Precision.FP32) == 2 * sent()


@pytest.mark.parametrize(
    ("checkpointing", "count"), [(Checkpointing.NONE, 4), (Checkpointing.FULL, 6)]
)
def test_tensor_parallelism_sends_activations(checkpointing: Checkpointing, count: int) -> None:
    found = transfers_of(
        setup(tp=4, library=Library.MEGATRON, seq=2048, micro_batch=2, checkpointing=checkpointing)
    )
    [transfer] = found
    assert transfer.bytes == pytest.approx(count * 32 * 2 * (3 / 4) * 2 * 2048 * 4096 * 2)
    assert not transfer.hidden


def test_a_pipeline_sends_what_stands_between_its_stages() -> None:
    found = transfers_of(setup(pp=4, library=Library.MEGATRON, seq=2048, accumulation=8))
    assert [transfer.group for transfer in found] == ["pipeline"]
    assert found[0].bytes == 2 * 8 * 2048 * 4096 * 2
    assert found[0].messages == 16


@pytest.mark.parametrize(("tp", "between_nodes"), [(4, False), (8, True)])
def test_stages_that_fill_a_node_each_send_over_the_network(tp: int, between_nodes: bool) -> None:
    def seconds(interconnect: str) -> float:
        pair = setup(pp=2, tp=tp, gpus=2 * tp, library=Library.MEGATRON, interconnect=interconnect)
        (sent,) = (one for one in transfers_of(pair) if one.group == "pipeline")
        return sent.seconds

    assert (seconds("ethernet-10") > seconds("infiniband-ndr")) is between_nodes


def test_the_blocks_that_are_left_over_make_a_stage_fuller() -> None:
    def fullest(layers: int) -> float:
        model = dataclasses.replace(SEVEN, layers=layers, exact_params=None)
        return params_per_rank(setup(model=model, pp=4, library=Library.MEGATRON))

    assert fullest(33) == fullest(36) > fullest(32)


def test_context_parallel_ranks_share_in_the_gradients() -> None:
    groups = {transfer.group for transfer in transfers_of(setup(cp=4, library=Library.MEGATRON))}
    assert groups == {"context", "data"}


def test_adapters_send_only_themselves() -> None:
    small = sent(library=Library.DDP, adapter=Adapter(rank=16))
    assert 0 < small < 0.01 * sent(library=Library.DDP)


SETUPS = st.builds(
    setup,
    gpu=st.sampled_from(["v100", "a100", "h100", "4090", "gb200", "mi300x"]).map(gpu_named),
    gpus=st.sampled_from([8, 16, 64, 256]),
    gpus_per_node=st.sampled_from([1, 4, 8]),
    library=st.sampled_from(Library),
    sharding=st.sampled_from(Sharding),
    shard_group=st.sampled_from([None, 1, 2]),
    tp=st.sampled_from([1, 2]),
    pp=st.sampled_from([1, 2]),
    vpp=st.sampled_from([1, 2]),
    cp=st.sampled_from([1, 2]),
    seq=st.sampled_from([1, 512, 8192]),
    micro_batch=st.sampled_from([1, 8]),
    accumulation=st.sampled_from([1, 7]),
    precision=st.sampled_from(Precision),
    checkpointing=st.sampled_from(Checkpointing),
    offload_optimizer=st.sampled_from(Offload),
    no_sync=st.booleans(),
    adapter=st.sampled_from([None, Adapter()]),
)


@given(SETUPS)
def test_every_setup_has_transfers_that_take_time(one: Setup) -> None:
    for transfer in transfers_of(one):
        assert transfer.bytes > 0
        assert transfer.seconds > 0
        assert transfer.messages >= transfer.times >= 1


@given(SETUPS, st.sampled_from(sorted(NETWORKS)))
def test_a_faster_network_is_never_slower(one: Setup, name: str) -> None:
    slow = dataclasses.replace(one, interconnect=f"own:gbit={NETWORKS[name].gbit},nics=1")
    fast = dataclasses.replace(one, interconnect=f"own:gbit={2 * NETWORKS[name].gbit},nics=1")
    for before, after in zip(transfers_of(slow), transfers_of(fast), strict=True):
        assert after.seconds <= before.seconds


def test_bandwidth_grows_with_the_message_as_measured() -> None:
    """All-reduces on one and four nodes of 8 B200 (stas00/ml-engineering), GB/s."""
    gpu = gpu_named("b200")
    fabric = Fabric(gpu=gpu, gpus_per_node=8, network=network_of(gpu))
    measured = {
        8: {16: 255, 256: 646, 4096: 741, 16384: 846},
        32: {16: 64, 256: 229, 4096: 377, 16384: 382},
    }
    for ranks, sizes in measured.items():
        for size, gbs in sizes.items():
            seconds = fabric.all_reduce_s(size * MIB, group_of(ranks, 1, 8))
            busbw = 2 * (ranks - 1) / ranks * size * MIB / seconds / 1e9
            assert 0.8 * gbs <= busbw <= 1.6 * gbs


@pytest.mark.parametrize("network", ["ethernet-10", "ethernet-25", "1xroce-100"])
def test_a_bucket_of_ddp_fills_a_slow_network(network: str) -> None:
    gpu = gpu_named("4090")
    fabric = Fabric(gpu=gpu, gpus_per_node=1, network=network_of(gpu, network))
    group = group_of(4, 1, 1)
    whole = 2 * (3 / 4) * 25 * MIB / fabric.busbw(group)
    assert whole < fabric.all_reduce_s(25 * MIB, group) < 1.3 * whole


def test_buckets_of_megatron_grow_with_the_ranks() -> None:
    """The larger of 40e6 and 1e6 elements for each rank, whatever a gradient's bytes."""
    for ranks, count in ((8, 175), (64, 109), (512, 14)):
        [reduced] = transfers_of(setup(gpus=ranks, library=Library.MEGATRON))
        assert reduced.messages == count


def test_what_our_configurations_overlap_is_overlapped() -> None:
    found = {
        (library, sharding): {one.name: one.hidden for one in transfers_of(
            setup(library=library, sharding=sharding))}
        for library, sharding in (
            (Library.DEEPSPEED, Sharding.NONE), (Library.DEEPSPEED, Sharding.OPTIMIZER),
            (Library.DEEPSPEED, Sharding.GRADIENTS), (Library.MEGATRON, Sharding.OPTIMIZER),
        )
    }  # fmt: skip
    assert found[Library.DEEPSPEED, Sharding.NONE] == {"all-reduce gradients": False}
    for sharding in (Sharding.OPTIMIZER, Sharding.GRADIENTS):
        assert found[Library.DEEPSPEED, sharding]["reduce-scatter gradients"]
    assert not found[Library.DEEPSPEED, Sharding.OPTIMIZER]["gather parameters (after the step)"]
    assert found[Library.MEGATRON, Sharding.OPTIMIZER] == {
        "reduce-scatter gradients": True,
        "gather parameters (forward)": True,
    }


def test_groups_of_a_node_share_its_network() -> None:
    gpu = gpu_named("h100")
    fabric = Fabric(gpu=gpu, gpus_per_node=8, network=network_of(gpu))
    together, alone = group_of(64, 1, 8), group_of(8, 8, 8)
    assert (together.nodes, alone.nodes, alone.per_node) == (8, 8, 1)
    assert fabric.busbw(together) == pytest.approx(8 * fabric.busbw(alone))


def test_an_all_to_all_keeps_the_part_of_each_rank() -> None:
    """By hand, of 16 TB each: 14 of them to the 7 others of a node, 8 to the 8 of another node."""
    gpu = gpu_named("h100")
    fabric = Fabric(gpu=gpu, gpus_per_node=8, network=interconnect_named("infiniband-ndr"))
    assert fabric.all_to_all_s(16e12, group_of(8, 1, 8)) == pytest.approx(14e12 / 371e9, rel=1e-3)
    # 400 Gbit/s to each GPU, of which 92 % are reached.
    assert fabric.all_to_all_s(16e12, group_of(16, 1, 8)) == pytest.approx(8e12 / 46e9, rel=1e-3)
    assert fabric.all_to_all_s(16e12, group_of(1, 1, 8)) == 0


def test_a_rack_with_nvlink_is_one_node() -> None:
    inside = setup(gpu=gpu_named("gb200"), gpus=64, gpus_per_node=4)
    outside = dataclasses.replace(inside, gpu=gpu_named("b200"))
    assert transfers_of(inside)[0].seconds < transfers_of(outside)[0].seconds / 2


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ndr", "infiniband-ndr"),
        ("NDR", "infiniband-ndr"),
        ("InfiniBand HDR", "infiniband-hdr"),
        ("ib-hdr", "infiniband-hdr"),
        ("8xroce-100", "8xroce-100"),
        ("hdr-x4", "4xinfiniband-hdr"),
        ("roce 200", "roce-200"),
        ("RoCE400", "roce-400"),
        ("10GbE", "ethernet-10"),
        ("ethernet-100g", "ethernet-100"),
        ("efa", "efa-p5"),
    ],
)
def test_a_network_has_many_names(text: str, name: str) -> None:
    assert interconnect_named(text).name == name


@pytest.mark.parametrize("text", ["ndrr", "", "0xndr", "x:gbit=0", "x:nics=2", "x:gbit=1,lanes=2"])
def test_a_network_that_is_none_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UserError, match="hint: "):
        interconnect_named(text)


@given(st.text(max_size=30))
def test_any_text_is_a_network_or_a_user_error(text: str) -> None:
    try:
        network = interconnect_named(text)
    except UserError:
        return
    assert network.node_gbs(8) > 0


def test_experts_that_ranks_divide_are_stepped_by_as_many_ranks_as_before() -> None:
    moe = model_named("mixtral-8x7b")
    one = setup(model=moe, library=Library.MEGATRON, sharding=Sharding.OPTIMIZER, gpus=64)
    split = dataclasses.replace(one, ep=8)
    assert owned_params(split) == pytest.approx(owned_params(one))
    assert owned_params(one) == pytest.approx(moe.params / 64)
    assert params_per_rank(split) < params_per_rank(one) / 4
    alone = dataclasses.replace(split, sharding=Sharding.NONE)
    assert owned_params(alone) == params_per_rank(alone)
