"""Where an estimate has to say no, or something else than the obvious: one test for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterkit.errors import UserError
from clusterkit.estimate.changes import smallest_change
from clusterkit.estimate.gpus import gpu_named
from clusterkit.estimate.host import usual_ram
from clusterkit.estimate.legality import problems_of
from clusterkit.estimate.models import model_of_params
from clusterkit.estimate.recommend import Judge, candidates, cautions_of, recommend
from clusterkit.estimate.setup import Setup
from clusterkit.estimate.strategies import Chosen, strategy_named
from clusterkit.estimate.wish import Wish, setup_of

JUDGE = Judge()


def wish(params: str = "7B", gpu: str = "h100", gpus: int = 8, **changes: Any) -> Wish:
    given: dict[str, Any] = {
        "model": model_of_params(params), "gpu": gpu_named(gpu), "gpus": gpus, "gpus_per_node": 8,
        "seq": 4096, "micro_batch": 1, "global_batch": gpus,
    } | changes  # fmt: skip
    return Wish(**given)


def setup(name: str, **changes: Any) -> Setup:
    return replace(setup_of(strategy_named(name).strategy, wish()), **changes)


def said(one: Setup) -> str:
    return " ".join(f"{problem.message} ({problem.hint})" for problem in problems_of(one))


# --- the RAM and the disks of a node ---


@pytest.mark.parametrize(("params", "gpu", "gpus"), [("1T", "h100", 8), ("70B", "4090", 1)])
def test_what_a_node_has_no_ram_for_goes_to_its_disks(params: str, gpu: str, gpus: int) -> None:
    tried = candidates(wish(params, gpu, gpus), JUDGE)
    chosen = recommend(tried).chosen
    assert chosen is not None
    assert chosen.name == "zero3-nvme+ac"
    large = recommend(candidates(wish(params, gpu, gpus), Judge(host_memory=30e12))).chosen
    assert large is not None
    assert large.name == "zero3-offload+ac"


def test_a_reason_names_the_ram_of_the_node() -> None:
    judge = Judge(host_memory=50e9)
    tried = candidates(wish(), judge, strategy_named("zero3-offload"))
    (one,) = tried.candidates
    assert one.memory.fits_gpu
    assert not one.fits
    assert "189.0 GB of RAM in each node, which has 50.0 GB" in recommend(tried).why
    change = smallest_change(one.setup, judge.fits, per_node=8)
    assert change is not None
    assert change.flags == "--gpus 32"


def test_disks_are_only_a_warning() -> None:
    tried = candidates(wish("2T"), JUDGE, strategy_named("zero3-nvme+ac"))
    (one,) = tried.candidates
    assert one.memory.fits_host
    assert any("on the disks of each node" in problem.message for problem in cautions_of(one))


def test_the_usual_ram_is_that_of_the_vendors_systems() -> None:
    for gpu, gigabytes in (("h100", 256), ("a100-40", 128), ("v100-32", 64), ("4090", 64)):
        assert usual_ram(gpu_named(gpu)) == gigabytes * 1e9


# --- the plan that was named ---


def names(chosen: Chosen | None, **changes: Any) -> list[str]:
    return [one.name for one in candidates(wish(**changes), JUDGE, chosen).candidates]


def test_what_was_not_said_of_ranks_stays_1() -> None:
    batch = {"micro_batch": 8, "global_batch": 32}
    for text, tp, pp in (("megatron-tp2", 2, None), ("megatron-pp4", None, 4)):
        tried = candidates(wish(tp=tp, pp=pp, **batch), JUDGE, strategy_named(text))
        (one,) = tried.candidates
        assert (one.name, one.setup.tp, one.setup.pp) == (text, tp or 1, pp or 1)
    beside = next(
        one for one in candidates(wish(tp=2, **batch), JUDGE).candidates if "meg" in one.name
    )
    assert (beside.setup.tp, beside.setup.pp) == (2, 1)


def test_megatron_alone_divides_as_little_as_fits() -> None:
    assert names(strategy_named("megatron"), params="350M") == ["megatron"]
    assert names(strategy_named("megatron"), micro_batch=8, global_batch=64) == ["megatron-tp4"]
    (one,) = candidates(wish("1T"), JUDGE, strategy_named("megatron")).candidates
    others = [
        candidates(wish("1T", tp=tp, pp=8 // tp), JUDGE, strategy_named("megatron")).candidates[0]
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
