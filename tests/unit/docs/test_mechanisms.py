"""The list of what is tested on real jobs has every pair, also those that no test covers."""

from __future__ import annotations

import re
import time
from contextlib import nullcontext
from itertools import zip_longest

import pytest

from clusterkit.core.data import read_table
from clusterkit.launch.frameworks import framework_names
from clusterkit.preflight.checks import all_checks
from tests.conftest import _turn, pytest_runtest_setup
from tests.frameworks.test_strategies import ADASUM, STRATEGIES
from tests.helpers import time_left
from tests.helpers.paths import ROOT, TESTS


def test_every_framework_and_every_area_of_checks_is_listed() -> None:
    rows = [(row["mechanism"], row["where"]) for row in read_table(TESTS / "mechanisms.tsv")]
    assert len({*rows}) == len(rows)
    areas = {check.area for check in all_checks()}
    pairs = {(f"framework {n}", w) for n in framework_names() for w in ("slurm", "ssh", "local")}
    pairs |= {(f"check {area}", where) for area in areas for where in ("slurm", "ssh")}
    assert {row for row in rows if row[0].startswith(("framework ", "check "))} == pairs


def table_below(heading: str, columns: int) -> list[list[str]]:
    """Return the rows of the first table of so many columns below a heading of frameworks.md."""
    page = (ROOT / "docs" / "how-to" / "frameworks.md").read_text()
    lines = page.partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"
    ]
    return [row for row in rows if len(row) == columns and not row[0].startswith("---")][1:]


def test_the_page_lists_each_strategy_by_the_command_that_is_tested() -> None:
    listed = table_below("Which strategy runs where", 4)
    for row, (framework, script, *args) in zip_longest(listed, (*STRATEGIES.values(), ADASUM)):
        assert row[1:] == [
            f"`{' '.join(['-f', framework, f'examples/{script}', *args])}`",
            "yes",
            "yes",
        ]


def test_the_page_lists_each_framework_with_an_example() -> None:
    listed = table_below("Which strategy runs where", 5)
    commands = [re.fullmatch(r"`-f (\w+) .*?(examples/\w+\.py).*`", row[1]) for row in listed]
    assert all(one is not None and (ROOT / one[2]).is_file() for one in commands)
    assert {one[1] for one in commands if one is not None} == {*framework_names()}
    assert {cell for row in listed for cell in row[2:]} == {"trains", "adds", "runs"}


def test_examples_are_listed_and_can_be_read_at_a_glance() -> None:
    page = (ROOT / "examples" / "README.md").read_text()
    for path in (ROOT / "examples").glob("t*.py"):
        assert f"| [{path.name}]({path.name}) |" in page
        assert len(path.read_text().splitlines()) <= 155, path


def test_each_cell_of_the_frameworks_is_a_test_of_its_own() -> None:
    rows = list(read_table(TESTS / "mechanisms.tsv"))
    tested = {(row["mechanism"], row["where"]): row["test"] for row in rows if row["test"] != "-"}
    known = {mechanism for mechanism, _ in tested}
    seen = set()
    for title, command, *cells in table_below("Which strategy runs where", 5):
        name = title if title in known else f"framework {command.strip('`').split()[1]}"
        for where, cell in zip(("slurm", "ssh", "local"), cells, strict=True):
            test = tested[name, where]
            assert ("test_ranks_add_their_numbers" in test) is (cell == "adds"), test
            assert test not in seen
            seen.add(test)


@pytest.mark.parametrize(("after_s", "left_s"), [(None, 60.0), (-1.0, 0.0), (1e6, 60.0)])
def test_in_continuous_integration_nothing_begins_too_late(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    after_s: float | None,
    left_s: float,
) -> None:
    monkeypatch.delenv(time_left.UNTIL, raising=False)
    if after_s is not None:
        monkeypatch.setenv(time_left.UNTIL, str(time.time() + after_s))
    assert time_left.left_s(60.0) == left_s
    late = pytest.raises(pytest.skip.Exception, match="not run") if not left_s else nullcontext()
    with late:
        pytest_runtest_setup(request.node)
    monkeypatch.setenv(time_left.WITHOUT, time_left.DOCKER)
    assert time_left.may_begin(request.node.nodeid) is bool(left_s)
    assert not time_left.may_begin("tests/docker/test_images.py::test_one")


def test_each_commit_has_an_order_of_its_own_of_what_may_come_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = [f"tests/lab/test_{k}.py" for k in range(9)]
    alone = [f"tests/lab/test_{name}.py::test_one" for name in ("elastic", "again", "faults")]
    monkeypatch.delenv(time_left.ORDER, raising=False)
    assert sorted([*alone, *files], key=_turn) == [*files, *alone]
    orders = set()
    for commit in "abc":
        monkeypatch.setenv(time_left.ORDER, commit)
        shuffled = sorted([*alone, *files], key=_turn)
        assert (sorted(shuffled[:9]), shuffled[9:]) == (files, alone)
        orders.add(tuple(shuffled))
    assert len(orders) == 3
