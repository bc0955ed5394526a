"""What a power limit costs in speed: measured trainings, and nothing beyond them."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest

from clusterkit.core.data import read_table
from clusterkit.core.errors import UserError
from clusterkit.estimate.machines import power
from clusterkit.estimate.machines.gpus import GPUS, PowerLimit, gpu_named
from clusterkit.estimate.machines.power import under_limit
from clusterkit.estimate.query.answer import read_options
from clusterkit.estimate.query.options import EstimateOptions
from clusterkit.estimate.request import setup_of
from clusterkit.estimate.results import Speed
from clusterkit.estimate.strategies import strategy_named
from tests.helpers.command_line import outcome

ROWS = tuple(read_table(power.__file__, "power.tsv"))


def limit_of(gpu: str, watts: float) -> PowerLimit:
    found = under_limit(gpu_named(gpu), watts).power
    assert found is not None
    return found


def speed_at(watts: float | None, *, gpus: int) -> Speed:
    request = read_options(
        EstimateOptions(
            params="1B", gpu="a100-pcie", gpus=gpus, interconnect="roce-100", power_limit=watts
        )
    )
    return request.speed(setup_of(strategy_named("ddp" if gpus > 1 else "single"), request))


@pytest.mark.parametrize("gpu", dict.fromkeys(row["gpu"] for row in ROWS))
def test_the_trainings_of_a_gpu_have_one_range_of_limits_and_a_source(gpu: str) -> None:
    assert gpu in GPUS
    rows = [row for row in ROWS if row["gpu"] == gpu]
    assert {row["source"] for row in rows} <= {"sosp24", "nsdi23"}
    ranges = set()
    for training in {row["training"] for row in rows}:
        watts = [float(row["watts"]) for row in rows if row["training"] == training]
        assert len(watts) >= 3
        assert all(more > less > 0 for more, less in pairwise(watts))
        ranges.add((watts[0], watts[-1]))
    assert len(ranges) == 1


def test_a_limit_that_was_measured_costs_what_was_measured() -> None:
    found = limit_of("a100-pcie", 225)
    # gpt3-xl 60.095 / 73.329 s, bert-huge 6.3548 / 7.5728 s, bloom-3b 61.545 / 72.49 s
    assert found.speeds == pytest.approx((0.81953, 0.83916, 0.84901), abs=1e-5)
    # bloom-3b 61975.5 / 68579.6 J, bert-huge 6308.96 / 6819.02 J
    assert found.energies == pytest.approx((0.90370, 0.92520), abs=1e-5)
    assert (found.watts, found.default_watts) == (225, 300)
    assert found.trainings == ("bert-huge", "bloom-3b", "gpt3-xl")


def test_between_two_measured_limits_speed_and_energy_are_interpolated() -> None:
    # V100 at 160 W: 0.6 x that at 150 W and 0.4 x that at 175 W. BERT on squad:
    # 0.6 x 1766 / 2325.4 + 0.4 x 1766 / 2005.1; sentiment140: with 4114.9, 4939.3 and 4626.8
    found = limit_of("v100-pcie", 160)
    assert found.speeds == pytest.approx((0.80797, 0.83178, 0.85560), abs=1e-5)
    # joules of squad 0.6 x 340620 + 0.4 x 339376 of 400447; sentiment140: of 919431
    assert found.energies == pytest.approx((0.81337, 0.84936), abs=1e-5)


def test_at_the_default_limit_nothing_is_lost() -> None:
    assert limit_of("a40", 300).speeds == (1, 1, 1)
    assert limit_of("a40", 300).energies == (1, 1)


def test_computing_slows_and_transfers_take_as_long_as_before() -> None:
    alone, limited = speed_at(None, gpus=1), speed_at(225, gpus=1)
    assert limited.compute_s == pytest.approx(alone.compute_s / 0.83916, rel=1e-4)
    assert limited.step_s.likely == pytest.approx(alone.step_s.likely / 0.83916, rel=1e-4)
    assert limited.step_s.low == pytest.approx(alone.step_s.low / 0.84901, rel=1e-4)
    assert limited.step_s.high == pytest.approx(alone.step_s.high / 0.81953, rel=1e-4)
    assert alone.of_full_power is None
    kept = limited.of_full_power
    assert kept is not None
    assert (kept.low, kept.high) == pytest.approx((0.81953, 0.84901), abs=1e-5)
    full, less = speed_at(None, gpus=16), speed_at(225, gpus=16)
    assert less.transfers == full.transfers
    assert less.of_full_power is not None
    assert 0.84901 < less.of_full_power.likely < 1  # it waits for its network, too
    assert less.of_full_power.likely == pytest.approx(full.step_s.likely / less.step_s.likely)


@pytest.mark.parametrize(
    ("gpu", "watts", "wrong", "hint"),
    [
        ("a40", 301, "is 301, and A40-48GB takes 300 W at most", "from 125 to 300 W"),
        ("a40", 124, "is 124, and on A40-48GB nobody measured less than 125 W", "125 to 300"),
        ("a40", -1, "nobody measured less than 125 W", "125 to 300"),
        ("a40", math.nan, "is nan", "125 to 300"),
        ("a40", math.inf, "at most", "125 to 300"),
        ("a100", 300, "not measured on A100-SXM4-80GB", "nearest: A100-PCIe-80GB, of the same"),
        ("h100", 500, "only on V100-PCIe-32GB, A40-48GB, A100-PCIe-80GB", "bench compute"),
        ("mine:memory=48,bf16=200,bandwidth=900", 300, "not measured on mine", "bench compute"),
    ],
)
def test_what_nobody_measured_is_refused(gpu: str, watts: float, wrong: str, hint: str) -> None:
    with pytest.raises(UserError) as refused:
        under_limit(gpu_named(gpu), watts)
    (problem,) = refused.value.problems
    assert wrong in problem.message
    assert hint in (problem.hint or "")


def test_the_verb_says_what_the_limit_costs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    line = "--params 1B --gpu a100-pcie --gpus 1 --power-limit 225"
    code, out, _ = outcome("estimate", *line.split())
    assert code == 0
    said = " ".join(out.split())
    assert "At 225 W of 300: single is 15 to 18 % slower; the GPUs took 90 to 93 % of" in said
    assert "(bert-huge, bloom-3b, gpt3-xl)." in said
    found = json.loads(outcome("estimate", *line.split(), "--json")[1])["power_limit"]
    assert found == {
        "strategy": "single",
        "watts": 225,
        "default_watts": 300,
        "trainings": ["bert-huge", "bloom-3b", "gpt3-xl"],
        "speed_ratio": 0.83916,
        "speed_ratio_range": [0.81953, 0.84901],
        "energy_ratio_range": [0.9037, 0.9252],
    }
    line = "--params 1B --gpu 8xa40+8xa100 --power-limit 300"
    code, _, error = outcome("estimate", *line.split())
    assert code == 2
    assert "--power-limit is for GPUs of one kind" in error
