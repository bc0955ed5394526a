"""The formulas of other estimators are theirs, and published runs are scored against all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from bench.accuracy.peers import (
    PEERS,
    deepspeed,
    deepspeed_zero2,
    deepspeed_zero3,
    eleuther,
    gpu_mem_calculator,
    megatron,
)
from bench.accuracy.score import score, spread, summary_of
from bench.accuracy.score_memory import Basis, basis_of, published_bytes, score_fits
from bench.accuracy.truth_table import parse_rows
from clusterkit.estimate.results import GIB
from clusterkit.estimate.setup import Checkpointing, Library, Offload, Setup, Sharding
from tests.helpers.needs import module
from tests.unit.estimate.test_estimate_communication import SETUPS, SEVEN, setup
from tests.unit.estimate.test_estimate_truth import row, table

MACHINES = [(1, 1), (8, 1), (8, 16), (3, 7)]


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize(("per_node", "nodes"), MACHINES)
@pytest.mark.parametrize("params", [1_000_003, 6_738_415_616])
def test_zero_2_is_what_the_installed_deepspeed_says(
    params: int, per_node: int, nodes: int, *, offload: bool
) -> None:
    stage_2 = module("deepspeed.runtime.zero.stage_1_and_2")
    cpu, gpu = stage_2.estimate_zero2_model_states_mem_needs(
        params, num_gpus_per_node=per_node, num_nodes=nodes, cpu_offload=offload
    )
    ours = deepspeed_zero2(params, gpus_per_node=per_node, nodes=nodes, offload=offload)
    assert (int(ours.cpu), int(ours.gpu)) == (cpu, gpu)


@pytest.mark.parametrize(("optimizer", "both"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("per_node", "nodes"), MACHINES)
def test_zero_3_is_what_the_installed_deepspeed_says(
    per_node: int, nodes: int, *, optimizer: bool, both: bool
) -> None:
    stage_3 = module("deepspeed.runtime.zero.stage3")
    params, largest = 6_738_415_616, 131_072_000
    cpu, gpu, _ = stage_3.estimate_zero3_model_states_mem_needs(
        params, largest, num_gpus_per_node=per_node, num_nodes=nodes, cpu_offload=optimizer,
        cpu_offload_params=both, zero_init=True,
    )  # fmt: skip
    ours = deepspeed_zero3(
        params, largest, gpus_per_node=per_node, nodes=nodes, offload_optimizer=optimizer,
        offload_params=both,
    )  # fmt: skip
    assert (int(ours.cpu), int(ours.gpu)) == (cpu, gpu)


def test_t5_3b_as_deepspeed_computes_it_today() -> None:
    """docs/code-docs/source/memory.rst still prints 15.93 GB for the first of them."""
    plain = deepspeed_zero2(2_851_000_000, gpus_per_node=8, nodes=1)
    offloaded = deepspeed_zero2(2_851_000_000, gpus_per_node=8, nodes=1, offload=True)
    assert plain.gpu / GIB == pytest.approx(11.28, abs=0.005)
    assert offloaded.gpu / GIB == pytest.approx(5.31, abs=0.005)


def test_deepspeed_covers_zero_2_and_3_alone() -> None:
    assert deepspeed(setup(sharding=Sharding.OPTIMIZER)) is None
    assert deepspeed(setup(library=Library.FSDP2, sharding=Sharding.FULL)) is None
    zero_3 = setup(sharding=Sharding.FULL)
    assert deepspeed(zero_3) == 4 * 32000 * 4096 + 18 * 7e9 / 4
    moved = replace(zero_3, offload_optimizer=Offload.CPU, offload_params=Offload.CPU)
    assert deepspeed(moved) == 4 * 32000 * 4096


def test_megatron_counts_18_bytes_and_no_third_matrix_in_activations() -> None:
    one = setup(library=Library.MEGATRON, gpus=1, seq=2048)
    params = 2 * 32 * 4096**2 * (2 + 1.5 * 11008 / 4096 + 2 / 4096 + 1 / (32 * 4096))
    params += 2 * 32000 * 4096
    kept = 2048 * (4096 * (18 + 4 * 11008 / 4096) * 32 + 8 + 4096 + 4 * (4096 + 32000))
    assert megatron(one) == pytest.approx(18 * params + kept)


def test_eleuther_divides_gradients_by_all_gpus_and_never_by_tensor_ranks() -> None:
    full = Checkpointing.FULL
    one = setup(sharding=Sharding.OPTIMIZER, gpus=8, tp=2, checkpointing=full)
    params = 2 * 32000 * 4096 + 4096 * 4096 + 8 * 4096 * 32 + 2 * 4096
    params += 4 * 32 * 4096**2 + 3 * 32 * 4096 * 11008
    states = 2 * params / 2 + 4 * params + 12 * params / 8
    kept = 4096 * 4096 * 32 * 34
    assert eleuther(one) == pytest.approx(states + 1e9 + kept + 5 * GIB)


def test_gpu_mem_calculator_adds_a_fifth() -> None:
    one = setup(sharding=Sharding.GRADIENTS, gpus=8, checkpointing=Checkpointing.FULL)
    kept = 16 * 4096 * 4096 * 32 * 0.2
    assert gpu_mem_calculator(one) == pytest.approx(1.2 * ((2 + 14 / 8) * 7e9 + kept))
    fsdp = replace(one, library=Library.FSDP2, sharding=Sharding.FULL)
    states = 4 * SEVEN.block_params + 20 * 7e9 / 8
    assert gpu_mem_calculator(fsdp) == pytest.approx(1.2 * (states + kept))


@given(SETUPS)
def test_others_answer_or_say_that_they_do_not_cover_it(one: Setup) -> None:
    for estimate in PEERS.values():
        said = estimate(one)
        assert said is None or said > 0


@pytest.mark.parametrize(
    ("changes", "basis", "gib"),
    [
        ({"basis": "max_memory_allocated"}, Basis.ALLOCATED, 60.5),
        ({"basis": "max_reserved"}, Basis.RESERVED, 60.5),
        ({"basis": "nvidia-smi style", "unit": "GB"}, Basis.OTHER, 60.5),
        ({"basis": "peak", "unit": "GB"}, Basis.OTHER, 60.5e9 / GIB),
        ({"basis": "", "unit": "MiB", "value": "1024"}, Basis.OTHER, 1.0),
        ({"kind": "analytic", "basis": "model states only"}, Basis.ANALYTIC, 60.5),
    ],
)
def test_what_a_figure_counts(changes: dict[str, str], basis: Basis, gib: float) -> None:
    assert basis_of(row(**changes)) is basis
    assert published_bytes(row(**changes)) / GIB == pytest.approx(gib)


def test_a_run_that_ended_for_want_of_memory_is_no_false_fit() -> None:
    rows = parse_rows(
        table(
            {"id": "a-1", "n_gpus": "1", "layout": "", "quantity": "fits", "value": "0"},
            {"id": "a-2", "n_gpus": "64", "layout": "", "quantity": "fits", "value": "0"},
            {"id": "a-3", "n_gpus": "1", "layout": "", "quantity": "step_time"},
            {"id": "a-4", "act_ckpt": "unknown"},
        ),
        source="t",
    )
    found = {one.row.id: one for one in score_fits(rows)}
    assert "a-4" not in found, "nobody knows what was computed again there"
    assert not found["a-1"].false_fit
    assert found["a-2"].false_fit
    assert found["a-3"].false_misfit
    assert found["a-3"].beyond_card


def test_the_document_has_what_it_promises() -> None:
    rows = parse_rows(
        table(
            {"id": "a-1", "basis": "max_memory_allocated"},
            {"id": "a-2", "basis": "max_memory_reserved"},
            {"id": "a-3", "quantity": "tokens_per_s_per_gpu", "value": "6000", "unit": ""},
            {"id": "a-4", "quantity": "busbw", "value": "200"},
            {"id": "a-5", "seq": ""},
            {"id": "a-6", "quantity": "mem_resident_per_gpu"},
        ),
        source="t",
    )
    document = summary_of(score(rows))
    assert (document["schema"], document["rows"], document["used"]) == (1, 6, 3)
    assert set(document["memory"]) == {"allocated", "reserved"}
    assert document["memory"]["allocated"]["rows"] == 1
    assert 0 <= document["memory"]["allocated"]["median_abs_error"] < 0.5
    assert document["throughput"]["uncalibrated"]["rows"] == 1
    assert document["false_fits"] == 0
    assert document["unused"] == {
        "a-4": "nothing is estimated of busbw",
        "a-5": "no sequence length",
        "a-6": "what it counts is a guess of the table",
    }
    assert set(document["others"]) == set(PEERS)
    assert document["worst"][0]["why"].startswith("peak: ")


def test_errors_are_summed_up_by_their_size() -> None:
    found = spread([-0.1, 0.2, 0.3, -0.4, 1.0])
    assert (found.rows, found.median, found.worst) == (5, 0.3, 1.0)
    assert found.p90 == pytest.approx(0.76)
    assert spread([]).rows == 0
