"""Hostlists against Slurm itself, against ClusterShell, and against their own laws."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from typing import Any

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.core.errors import UserError
from clusterkit.core.hosts.hostlist import MAX_NAMES, expand, fold, fold_set, parse_tasks_per_node
from tests.helpers.needs import require
from tests.helpers.paths import TESTS

ORACLES = json.loads((TESTS / "oracles" / "hostlists.json").read_text("utf-8"))


def cases(table: str) -> list[Any]:
    return [
        pytest.param(*case, id=repr(case[0])[:60])
        for group in ORACLES[table]
        for case in group["cases"]
    ]


numbers = st.builds(
    lambda value, width: f"{value:0{width}d}",
    st.integers(0, 10**6) | st.sampled_from([8, 9, 10, 98, 99, 100]),
    st.integers(0, 4),
)
words = st.from_regex(r"[a-z][a-z.-]{0,4}", fullmatch=True)
names = st.one_of(
    st.builds("n{}".format, numbers),
    st.builds("{}{}".format, words, numbers),
    st.builds("rack{}n{}".format, numbers, numbers),
    st.builds("n{}-ib".format, numbers),
    words,
    numbers,
    st.from_regex(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,30}", fullmatch=True),
)


@pytest.mark.parametrize(("text", "expected"), cases("expand"))
def test_expand(text: str, expected: list[str]) -> None:
    assert list(expand(text)) == expected


@pytest.mark.parametrize(("text", "count", "first", "last"), cases("ends"))
def test_expand_of_lists_found_in_the_field(text: str, count: int, first: str, last: str) -> None:
    hosts = expand(text)
    assert (len(hosts), hosts[0], hosts[-1]) == (count, first, last)


@pytest.mark.parametrize(("text", "column"), cases("refused"))
def test_refusals_point_at_the_place(text: str, column: int) -> None:
    with pytest.raises(UserError) as caught:
        expand(text)
    (problem,) = caught.value.problems
    assert problem.position is not None
    assert problem.position.column == column


def test_an_error_names_its_source_line_and_hint() -> None:
    with pytest.raises(UserError) as caught:
        expand("\n n[3-1]\n", source="--hosts")
    assert str(caught.value) == (
        "the range 3-1 runs backwards\n"
        "  --> --hosts:2:4\n"
        "2 |  n[3-1]\n"
        "  |    ^\n"
        "hint: did you mean 1-3?"
    )


def test_the_cap_is_named() -> None:
    assert len(expand(f"n[1-{MAX_NAMES}]")) == MAX_NAMES
    with pytest.raises(UserError, match="65,536 hosts"):
        expand(f"n[0-{MAX_NAMES}]")


@pytest.mark.parametrize(
    ("hosts", "folded"),
    [
        (["n1", "n2", "n3", "n7"], "n[1-3,7]"),
        (["n3", "n1"], "n[3,1]"),
        (["n1", "n3", "n1"], "n[1,3,1]"),
        (["n098", "n099", "n100"], "n[098-100]"),
        (["n98", "n099"], "n[98,099]"),
        (["node1-ib", "node2-ib"], "node1-ib,node2-ib"),  # Slurm refuses node[1-2]-ib
        (["login", "login"], "login,login"),
        (["1", "2"], "[1-2]"),
        ([], ""),
    ],
)
def test_fold(hosts: list[str], folded: str) -> None:
    assert fold(hosts) == folded


@pytest.mark.parametrize("name", ["", "a b", "a,b", "n[1]", "-x", "fe80::1", "n\n", "x" * 254])
def test_fold_refuses_what_would_not_come_back(name: str) -> None:
    with pytest.raises(UserError, match="cannot stand in a hostlist"):
        fold(["n1", name])


@pytest.mark.parametrize(
    ("hosts", "shown"),
    [
        (["n9", "n10", "n1", "n10"], "n[1,9-10]"),
        (["n1-ib", "n2-ib", "n2-eth", "n1-eth"], "n[1-2]-eth,n[1-2]-ib"),
        (["gpu-1-eth0", "gpu-2-eth0"], "gpu-[1-2]-eth0"),
        (["n1.a2.example", "n2.a2.example"], "n[1-2].a2.example"),
        (["rack2n1", "rack1n2", "rack1n1"], "rack1n[1-2],rack2n1"),
        ([], ""),
    ],
)
def test_fold_set(hosts: list[str], shown: str) -> None:
    assert fold_set(hosts) == shown


@pytest.mark.parametrize(("text", "expected"), cases("tasks_per_node"))
def test_tasks_per_node(text: str, expected: list[int]) -> None:
    assert list(parse_tasks_per_node(text)) == expected


@pytest.mark.parametrize(
    "text", ["", "x", "2,", "2(x0)", "0", "2(x)", "-1", "2(x2", "2(x99999999)", "9" * 5000, "2;3"]
)
def test_bad_tasks_per_node(text: str) -> None:
    with pytest.raises(UserError, match="not a task count"):
        parse_tasks_per_node(text)


@given(st.lists(names, max_size=12))
def test_fold_loses_nothing(hosts: list[str]) -> None:
    assert list(expand(fold(hosts))) == hosts


@given(st.lists(names, max_size=12))
def test_fold_set_shows_exactly_the_names(hosts: list[str]) -> None:
    shown = expand(fold_set(hosts))
    assert len(shown) == len(set(shown))
    assert set(shown) == set(hosts)


@given(st.lists(st.text(max_size=8), max_size=5))
def test_fold_set_never_refuses(hosts: list[str]) -> None:
    fold_set(hosts)


@given(st.text() | st.text(alphabet="n019[]-, :.\n", max_size=20))
def test_expand_raises_nothing_but_user_errors(text: str) -> None:
    try:
        hosts = expand(text)
    except UserError:
        return
    assert len(hosts) <= MAX_NAMES
    assert all(re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*", host) for host in hosts)


@given(st.text() | st.text(alphabet="123,(x)", max_size=12))
def test_tasks_per_node_raises_nothing_but_user_errors(text: str) -> None:
    try:
        counts = parse_tasks_per_node(text)
    except UserError:
        return
    assert all(count >= 1 for count in counts)


ranges = st.builds(
    lambda low, count, width: f"{low:0{width}d}-{low + count:0{width}d}",
    st.integers(0, 120),
    st.integers(0, 15),
    st.just(3) | st.just(0),
)
items = st.builds(
    lambda prefix, inside: f"{prefix}[{','.join(inside)}]",
    st.sampled_from(["n", "gpu-a-", "rack[1-2]n"]),
    st.lists(ranges, min_size=1, max_size=3),
)


@given(st.lists(items | st.sampled_from(["login1", "m5"]), min_size=1, max_size=3))
def test_expand_agrees_with_clustershell_but_for_order(listed: list[str]) -> None:
    text = ",".join(listed)
    assert set(expand(text)) == set(NodeSet(text))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment in which `scontrol` works with no controller at all."""
    require("scontrol")
    conf = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\n")
    return {"PATH": "/usr/bin:/bin:/usr/local/bin", "SLURM_CONF": str(conf)}


def scontrol_hostnames(text: str, env: dict[str, str]) -> list[str] | None:
    command = ["scontrol", "show", "hostnames", text]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return None if done.returncode or "nvalid" in done.stderr else done.stdout.split()


def test_slurm_itself_agrees(slurm: dict[str, str]) -> None:
    by_slurm, _, by_tensorflow = ORACLES["expand"]
    for text, expected in by_slurm["cases"] + by_tensorflow["cases"]:
        assert scontrol_hostnames(text, slurm) == expected, text


def test_slurm_reads_what_fold_writes(slurm: dict[str, str]) -> None:
    pool = ["n1", "n2", "n3", "n09", "n10", "a1-ib", "a2-ib", "rack1n3", "rack1n4", "10.0.0.1", "7"]
    for hosts in itertools.islice(itertools.permutations(pool, 4), 0, None, 97):
        assert scontrol_hostnames(fold(hosts), slurm) == list(hosts), hosts
