"""Nodes of two kinds in one job: the micro batches of each kind add up, fit, and waste least."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import clusterkit
from clusterkit.core.errors import UserError
from clusterkit.estimate.query.mixed import Mixed, is_mixed, mixed
from clusterkit.estimate.query.options import EstimateOptions
from clusterkit.estimate.setup import Setup


@pytest.fixture(autouse=True)
def _nothing_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def asked(gpu: str, **more: object) -> Mixed:
    options = EstimateOptions(model="llama-3.1-8b", gpu=gpu)
    return mixed(replace(options, **{"global_batch": 512, **more}))


def step_of(found: Mixed, first: int, second: int, rounds: int) -> float | None:
    """Return the seconds of a step with these micro batches; None where they do not fit."""

    def on(setup: Setup, size: int) -> Setup:
        return replace(setup, micro_batch=size, accumulation=rounds)

    setups = [
        on(share.setup, size) for share, size in zip(found.shares, (first, second), strict=True)
    ]
    request = found.request
    if not all(request.fits(setup) for setup in setups):
        return None
    return max(request.speed(setup).step_s.likely for setup in setups)


@pytest.mark.parametrize(
    ("gpu", "more"),
    [
        ("8xa100-40+8xh100", {}),
        ("8xh100+8xa100-40", {}),
        ("16xa100-80 + 8xh200", {"global_batch": 384, "strategy": "fsdp+ac"}),
        ("4xa100-80+8xh100", {"global_batch": 240, "strategy": "zero3"}),
        ("8xa100-80,8xh100", {"strategy": "zero1+ac", "accumulation": 16}),
        ("4xmine:memory=48,bf16=200,bandwidth=9e+2+4xh100", {"global_batch": 64}),
    ],
)
def test_no_other_division_of_the_batch_is_faster(gpu: str, more: dict[str, object]) -> None:
    found = asked(gpu, **more)
    (one, two), batch = found.shares, found.request.global_batch
    first_gpus, second_gpus = (count for count, _ in found.kinds)
    rounds = one.setup.accumulation
    assert rounds == two.setup.accumulation
    assert (
        first_gpus * one.setup.micro_batch + second_gpus * two.setup.micro_batch
    ) * rounds == batch
    assert one.memory.fits
    assert two.memory.fits
    total = batch // rounds
    others = [
        step_of(found, first, (total - first_gpus * first) // second_gpus, rounds)
        for first in range(1, (total - second_gpus) // first_gpus + 1)
        if (total - first_gpus * first) % second_gpus == 0
    ]
    assert found.step_s == pytest.approx(min(filter(None, others)))
    assert found.even_s is None or found.step_s <= found.even_s


def test_the_faster_kind_takes_more_and_the_slower_is_named_where_its_memory_is_full() -> None:
    found = asked("8xa100-40+8xh100", global_batch=4096, strategy="fsdp+ac")
    small, large = (share.setup.micro_batch for share in found.shares)
    assert large > small
    assert found.even_s is not None
    assert found.step_s < 0.8 * found.even_s
    # A GPU that is as fast and has little memory is full before it has its share.
    h100 = "8xh100:memory=26,usable=25+8xh100"
    assert asked(h100, strategy="fsdp+ac", accumulation=8).full == "H100-SXM5-80GB"


def test_both_kinds_share_network_and_precision() -> None:
    found = asked("8xv100-32+8xh100", strategy="zero3-offload+ac")
    assert {share.setup.precision for share in found.shares} == {"fp16"}
    assert {share.setup.interconnect for share in found.shares} == {found.request.interconnect}


@pytest.mark.parametrize(
    ("gpu", "more", "message"),
    [
        ("a100+h100", {}, "does not say how many of which"),
        ("8xa100-80+h100", {}, "does not say how many of which"),
        ("0xa100-80+8xh100", {}, "does not say how many of which"),
        ("8xa100-80+8xh100+8xv100", {}, "names 3 kinds, and two can be divided"),
        ("8xmi300x+8xh100", {}, "NVIDIA and AMD have no collectives in common"),
        ("8xa100-80+8xh100", {"gpus": 8}, "are 16"),
        ("8xa100-80+8xh100", {"tp": 2}, "--tp is for GPUs of one kind"),
        ("8xa100-80+8xh100", {"strategy": "megatron"}, "--strategy megatron is for GPUs of one"),
        ("8xa100-80+8xh100", {"gpus_per_node": 3}, "not whole nodes of 3"),
        ("8xh100+8xh100", {}, "both kinds are H100-SXM5-80GB"),
        ("8xa100-80+8xh1000", {}, "no GPU is called 'h1000'"),
        ("8xa100-80+8xh100", {"global_batch": 100}, "does not divide"),
    ],
)
def test_what_makes_no_sense_is_refused(gpu: str, more: dict[str, object], message: str) -> None:
    assert is_mixed(gpu)
    with pytest.raises(UserError, match=message):
        asked(gpu, **more)


def test_python_is_told_who_divides() -> None:
    with pytest.raises(UserError, match="names two kinds") as refused:
        clusterkit.estimate(model="gpt2", gpu="8xa100-40+8xh100")
    assert refused.value.problems[0].hint == "clusterkit estimate --gpu 8xa100-40+8xh100 --json"


def test_what_fits_on_one_kind_alone_does_not_fit() -> None:
    found = asked("8xt4+8xh200", strategy="fsdp")
    assert found.strategy is None
    assert "T4" not in found.why
    assert not is_mixed("mine:memory=48,bf16=200,bandwidth=1e+3")
