"""Hostile nodes beside a healthy one: each ends in time, is named, and takes nobody's answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.nodes import HEALTHY, LISTENERS, PROGRAMS, Farm, Ran, farm

MOST_MIB = 300
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
QUICK = [HEALTHY, "flood", "lines", "stderr", "banner", "packet"]
"""Those that do not wait for an end of their input, which a conversation has not."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with farm(tmp_path_factory.mktemp("farm")) as one:
        yield one


def require_calm(ran: Ran) -> None:
    assert ran.code in {1, 2}, ran.err
    assert ran.memory_mib < MOST_MIB
    assert "Traceback" not in ran.out + ran.err
    assert "has a bug" not in ran.err
    assert not CONTROL.search(ran.out + ran.err)


def test_preflight_tells_the_hostile_from_the_healthy(nodes: Farm, tmp_path: Path) -> None:
    saved, page = tmp_path / "bundle", tmp_path / "page.html"
    words = ("--select", "ssh,host,gpu", "--save", str(saved), "--html", str(page))
    ran = nodes.run("preflight", *words, "--json", within_s=60)
    require_calm(ran)
    report = json.loads(ran.out)
    assert set(report["nodes"]) == {HEALTHY, *PROGRAMS, *LISTENERS}
    assert report["usable"] == [] or report["usable"] == [HEALTHY]
    assert {*PROGRAMS, *LISTENERS} <= set(report["exclude"])
    unreached = {
        node: finding
        for finding in report["findings"]
        if finding["id"] == "SSH001" and finding["verdict"] == "fail"
        for node in finding["nodes"]
    }
    assert set(unreached) == {*PROGRAMS, *LISTENERS}
    assert "make no sense" in unreached["deep"]["summary"]
    assert "a line of more than 64 KiB" in unreached["flood"]["evidence"]
    assert "more than" in unreached["framed"]["evidence"]
    passed = {
        f["id"] for f in report["findings"] if HEALTHY in f["nodes"] and f["verdict"] == "pass"
    }
    assert {"SSH001", "HOST001"} <= passed
    for finding in report["findings"]:
        assert "stolen" not in json.dumps(finding)
    assert "<script>owned" not in page.read_text()
    again = nodes.run("preflight", "--replay", str(saved), "--json", within_s=30)
    assert json.loads(again.out)["findings"] == report["findings"]


def test_top_shows_the_healthy_one(nodes: Farm) -> None:
    ran = nodes.run("top", "--once", "--json", within_s=60)
    require_calm(ran)
    rows = {row["node"]: row for row in json.loads(ran.out)["nodes"]}
    assert rows[HEALTHY]["problem"] in {None, ""}
    for name in (*PROGRAMS, *LISTENERS):
        assert rows[name]["problem"], name


def test_prepare_fails_one_by_one(nodes: Farm) -> None:
    words = ("--hosts", ",".join(QUICK), "--python", "no-such-python", "--json")
    ran = nodes.run("nodes", "prepare", *words, within_s=60)
    require_calm(ran)
    told = {one["node"]: one for one in json.loads(ran.out)["nodes"]}
    assert set(told) == set(QUICK)
    assert "no-such-python cannot be run there" in told[HEALTHY]["detail"]
    assert {one["readiness"] for one in told.values()} == {"failed"}
