"""The made-up cluster of the benchmark: exactly its unfit nodes are named, and replays agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.judge.fleet import Fleet, fleet
from clusterkit.cli.frame.main import app
from clusterkit.core.findings import Verdict
from clusterkit.preflight.bundle import write_bundle
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.checks.base import Tier
from clusterkit.preflight.evaluate import evaluate

NODES = 1400
"""Enough that every fault of the fleet occurs."""


@pytest.fixture(scope="module")
def made_up() -> Fleet:
    return fleet(NODES)


def test_exactly_the_unfit_nodes_are_named(made_up: Fleet) -> None:
    checks = [check for check in all_checks() if check.tier is not Tier.NETWORK]
    report = evaluate(made_up.bundle, checks)
    assert report.exclude == made_up.unfit
    assert len(made_up.unfit) == NODES // 100
    others = {node for node, verdict in report.verdicts().items() if verdict is not Verdict.PASS}
    assert others == {*made_up.unfit}, "is an answer missing in bench/judge/texts.py?"


def test_a_replay_leaves_out_what_was_not_measured_and_was_not_asked_for(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", fleet(4).bundle)
    runner = CliRunner()

    def ids(*more: str) -> set[str]:
        argv = ["preflight", "--replay", str(tmp_path / "bundle"), "--json", *more]
        document = json.loads(runner.invoke(app, argv).stdout)
        return {finding["id"] for finding in document["findings"]}

    assert "GPU001" in ids()
    assert not {name for name in ids() if name.startswith("NET")}
    assert "NET001" in ids("--select", "NET")
