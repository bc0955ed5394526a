"""Rented machines: their prices, which is cheapest, and from how much use on to own some."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.errors import UserError
from clusterkit.estimate.machines.gpus import gpu_named
from clusterkit.estimate.machines.instances import Owned, break_even, instance_named, instances
from clusterkit.estimate.machines.interconnects import interconnect_named
from clusterkit.estimate.query.answer import ranked
from clusterkit.estimate.query.options import EstimateOptions
from tests.helpers.command_line import outcome

Ask = Callable[[str], tuple[int, str, str]]
OWNED = "--own 600000 --power 20 --price-kwh 0.15 --years 4"


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    """Run the verb in an empty folder of a user who has measured nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return lambda line: outcome("estimate", *shlex.split(line))


def document(ask: Ask, line: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(f"{line} --json")[1])
    return found


@pytest.mark.parametrize("name", instances())
def test_a_price_has_a_day_and_a_source(name: str) -> None:
    one = instances()[name]
    assert re.fullmatch(r"[a-z]+:[a-z0-9._-]+", name)
    assert date(2025, 1, 1) < date.fromisoformat(one.as_of) <= date(2026, 11, 27)
    assert one.source
    assert gpu_named(one.gpu).memory_gb > 30
    assert one.network is None or interconnect_named(one.network)
    assert 1 < one.per_gpu < 20


def test_a_p4d_has_the_small_a100_at_its_price_of_today() -> None:
    assert gpu_named(instance_named("p4d.24xlarge").gpu).memory_gb == 40
    assert instance_named("AWS:p4d.24xlarge").usd == 21.96
    assert instance_named("Standard_ND96isr_H100_v5").usd == 98.32  # as its metadata server says
    with pytest.raises(UserError, match=r"no price of 'p5\.49xlarge' is known") as refused:
        instance_named("p5.49xlarge")
    assert "p5.48xlarge" in (refused.value.problems[0].hint or "")


def test_on_gives_gpu_network_and_price(ask: Ask) -> None:
    line = "--params 7B --gpus 16 --tokens 1T"
    found = document(ask, f"{line} --on aws:p5.48xlarge")
    same = document(ask, f"{line} --gpu h100 --interconnect efa-p5 --price 6.88")
    assert found.pop("instance")["as_of"] == "2026-08-26"
    assert found["bill"] == same["bill"]
    ours = document(ask, f"{line} --on p5.48xlarge --price 2")
    hours, price = (ours["bill"]["bill"][key]["likely"] for key in ("gpu_hours", "price"))
    assert price == pytest.approx(2 * hours)
    said = ask(f"{line} --on p5.48xlarge")[1]
    assert "Rented: aws:p5.48xlarge, 55.04 USD an hour (us-east-1, 2026-08-26," in said
    assert "on 8 x H100" in ask("--model llama-3.1-8b --on p5.48xlarge")[1]  # those of one machine


def test_machines_are_ranked_by_money(ask: Ask) -> None:
    line = "--params 7B --gpus 16 --tokens 1T --on aws:p4d.24xlarge,nebius:8x-h200,p5.48xlarge"
    rows = document(ask, line)["ranked"]
    paid = [row["bill"]["price"]["likely"] for row in rows]
    assert paid == sorted(paid)
    assert rows[0]["instance"]["name"] == "nebius:8x-h200"
    code, said, _ = ask(line)
    assert code == 0
    assert said.startswith("MACHINE")
    wide = ask("--params 70B --gpus 16 --tokens 9T --on standard_nd96isr_h100_v5,p5.48xlarge")[1]
    assert max(map(len, wide.splitlines())) <= 80
    assert "What joins machines of nebius:8x-h200 is not known" in said
    code, said, _ = ask(
        "--params 70B --gpus 1 --tokens 1B --offload none --on p4d.24xlarge,p5.48xlarge"
    )
    assert (code, said.count("nothing fits")) == (1, 2)


def test_ranking_goes_by_the_middle_of_the_price() -> None:
    options = EstimateOptions(params="1B", gpus=8, tokens="1B", on="p5.48xlarge, p4d.24xlarge")
    rows = ranked(options)
    assert [row.usd for row in rows] == sorted(row.usd for row in rows)
    assert len(rows) == 2


def test_owning_pays_from_so_many_hours_on() -> None:
    owned = Owned(price=600_000, power_kw=20, price_kwh=0.15, years=4)
    found = break_even(owned, rent_per_hour=103.0)
    assert found.hours == pytest.approx(600_000 / (103 - 3))
    assert found.utilisation == pytest.approx(6000 / (4 * 8766))
    assert found.own_per_hour == pytest.approx(600_000 / (4 * 8766) + 3)
    hours = found.hours or math.nan
    assert owned.price + 3 * hours == pytest.approx(103 * hours)
    for rent in (2.0, 3.0, 20.0):  # less than energy, as much, and too little within four years
        assert break_even(owned, rent_per_hour=rent).hours is None


def test_the_report_tells_it(ask: Ask) -> None:
    line = f"--params 7B --gpus 16 --on p5.48xlarge {OWNED}"
    said = " ".join(ask(line)[1].split())
    assert "rented 110.08. Owning costs less from 5,603 hours at work on, 16% of the time" in said
    assert document(ask, line)["own_or_rent"]["hours"] == pytest.approx(600_000 / 107.08)
    never = ask(f"--params 7B --gpu h100 --gpus 8 --price 0.1 {OWNED}")[1]
    assert "Owning never costs less" in " ".join(never.split())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--on p5.48xlarge --own 3 --years 2", "need --power, --price-kwh as well"),
        (f"--gpu h100 {OWNED}", "--own is held against the price of renting"),
        ("--on p5.48xlarge --own nan --power 1 --price-kwh 1 --years 1", "--own is nan"),
        ("--on p5.48xlarge --own 1 --power 1 --price-kwh 1 --years 0", "--years is 0"),
        ("--on p5.48xlarge --gpu a100", "aws:p5.48xlarge has h100"),
        ("--on aws:p5", "no price of 'aws:p5' is known"),
        ("--on p5.48xlarge,p4d.24xlarge", "ranked by what a number of tokens costs"),
        ("--on p5.48xlarge,p4d.24xlarge --tokens 1T --price 3", "are for one machine"),
        ("--on p5.48xlarge,p4d.24xlarge --tokens 1T --launch", "are for one machine"),
        ("--on , --tokens 1T", "no price of"),
    ],
)
def test_what_makes_no_sense_is_refused(ask: Ask, line: str, words: str) -> None:
    code, _, errors = ask(f"--params 7B --gpus 8 {line}")
    assert code == 2
    assert words in errors
