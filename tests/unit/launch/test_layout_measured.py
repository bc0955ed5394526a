"""Machines in the order of what preflight measured between them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterkit.core.hosts.hostlist import expand
from clusterkit.launch.rank_layout.fabric import Fabric, Pair, measured_fabric
from clusterkit.preflight.bundle import Bundle, write_bundle
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import Output, PreflightJob, Reach, ReachProblem
from tests.helpers.command_line import outcome
from tests.unit.launch.test_layout import laid_out
from tests.unit.preflight.test_check_net import links

NODES = expand("n[1-8]")
Figure = Callable[[str, str], float]


def alike(*_: str) -> float:
    return 1e9


def odd_and_even(one: str, other: str) -> bool:
    return int(one[1:]) % 2 == int(other[1:]) % 2


def fabric(latency: Figure, rate: Figure = alike, nodes: tuple[str, ...] = NODES) -> Fabric:
    pairs: list[Pair] = list(permutations(nodes, 2))
    return measured_fabric(
        nodes,
        latencies_us={pair: latency(*pair) for pair in pairs},
        rates={pair: rate(*pair) for pair in pairs},
    )


def groups(found: Fabric) -> list[tuple[str, ...]]:
    return [leaf.nodes for leaf in found.leaves]


ODD, EVEN = expand("n[1,3,5,7]"), expand("n[2,4,6,8]")


@settings(max_examples=50)
@given(st.integers(0, 10_000))
def test_groups_are_found_in_noise(seed: int) -> None:
    dice = random.Random(seed)
    near, far = dice.uniform(15, 400), dice.uniform(3, 30)
    found = fabric(lambda a, b: near * dice.uniform(1, 1.3) * (1 if odd_and_even(a, b) else far))
    assert groups(found) == [ODD, EVEN]


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(2, 12))
def test_an_even_network_is_one_group(seed: int, count: int) -> None:
    dice = random.Random(seed)
    nodes = tuple(f"n{number}" for number in range(count))
    found = fabric(
        lambda *_: 60 * dice.uniform(1, 1.45), lambda *_: 1e9 * dice.uniform(0.7, 1), nodes
    )
    assert groups(found) == [nodes]


def test_bandwidth_divides_what_latency_does_not() -> None:
    found = fabric(lambda *_: 50, lambda a, b: 3e9 if odd_and_even(a, b) else 1e9)
    assert groups(found) == [ODD, EVEN]


def test_both_divide_and_groups_of_one_building_stand_together() -> None:
    half = {node: node in NODES[:4] for node in NODES}
    found = fabric(
        lambda a, b: 40 if half[a] == half[b] else 400,
        lambda a, b: 3e9 if odd_and_even(a, b) else 1e9,
    )
    assert groups(found) == [expand(f"n[{pair}]") for pair in ("1,3", "2,4", "5,7", "6,8")]


def test_one_bad_cable_divides_nothing() -> None:
    found = fabric(lambda a, b: 900 if {a, b} == {"n1", "n2"} else 50)
    assert groups(found) == [NODES]
    found = fabric(
        lambda a, b: 9000 if {a, b} == {"n1", "n3"} else 50 if odd_and_even(a, b) else 400
    )
    assert groups(found) == [ODD, EVEN]


def test_a_few_microseconds_are_no_distance() -> None:
    assert groups(fabric(lambda a, b: 10 if odd_and_even(a, b) else 25)) == [NODES]


def test_a_node_that_is_far_from_all_stands_alone() -> None:
    found = fabric(lambda a, b: 900 if "n4" in {a, b} else 50)
    assert groups(found) == [expand("n[1-3,5-8]"), ("n4",)]


def test_many_nodes_of_which_a_part_of_the_pairs_was_measured() -> None:
    dice = random.Random(7)
    nodes = tuple(f"n{number}" for number in range(240))
    rack = {node: number % 5 for number, node in enumerate(nodes)}
    measured = {
        (a, b): dice.uniform(40, 55) if rack[a] == rack[b] else dice.uniform(120, 160)
        for k in dice.sample(range(1, 240), 60)
        for a, b in ((nodes[i], nodes[(i + k) % 240]) for i in range(240))
    }
    found = measured_fabric(nodes, latencies_us=measured, rates={})
    assert sorted(map(len, groups(found))) == [48] * 5
    assert all(len({rack[node] for node in group}) == 1 for group in groups(found))


def test_pipelines_stay_where_nodes_are_near() -> None:
    near = fabric(lambda a, b: 50 if odd_and_even(a, b) else 300)
    layout = laid_out(tp=8, pp=4, fabric=near)
    assert [layout.hosts[n::2] for n in (0, 1)] == [ODD, EVEN]


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the verb where `monday` is a bundle of n1 to n8 and n9, which did not answer."""
    monkeypatch.chdir(tmp_path)
    said = links(nodes=NODES, latency=lambda a, b: 40 if odd_and_even(a, b) else 250)
    replies = [
        Reply(node=node, reach=Reach(via="ssh"),
              outputs={name: Output(stdout=str(text)) for name, text in said[node].items()})
        for node in NODES
    ]  # fmt: skip
    lost = Reply(node="n9", reach=Reach(via="ssh", problem=ReachProblem.TIMEOUT), outputs={})
    hosts = (*NODES, "n9")
    write_bundle(
        Path("monday"),
        Bundle(
            job=PreflightJob(hosts=hosts), replies=(*replies, lost), collected_at=1.0, seconds=2.0
        ),
    )

    def run(*args: str) -> tuple[int, str, str]:
        return outcome("layout", *args)

    return run


def test_a_bundle_orders_the_machines_that_answered(run: Run) -> None:
    code, out, err = run("--tp", "8", "--pp", "2", "--bundle", "monday")
    assert (code, err) == (0, "")
    assert "pp       2      32  2 nodes near each other\n" in out
    assert "hosts in rank order: n[1,5,2,6,3,7,4,8]\n" in out


def test_an_order_that_is_kept_is_judged_by_a_bundle(run: Run) -> None:
    words = ("--tp", "8", "--pp", "8", "--bundle", "monday", "--keep-order", "--json")
    code, out, _ = run(*words, "--hosts", "n[1-8]")
    said = json.loads(out)
    assert (code, said["measured"], said["hosts"]) == (1, True, list(NODES))
    assert [warning["message"] for warning in said["warnings"]] == [
        "56 of 56 pairs of pipeline neighbours are not near each other"
    ]


def test_a_machine_that_was_not_measured_is_named(run: Run) -> None:
    code, out, _ = run("--tp", "8", "--bundle", "monday", "--hosts", "n[8-9]")
    assert code == 1
    assert "nothing was measured between n9 and the others" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--bundle", "tuesday"), "tuesday does not exist"),
        (("--bundle", "."), "is not a bundle"),
        (("--bundle", "monday", "--topology", "-"), "leave one out"),
        (("--bundle", "monday", "--nodes", "3"), "--bundle has 8 nodes, and --nodes says 3"),
        (("--facts", "monday", "--nodes", "3"), "--bundle monday"),
        (("--island", "four", "--nodes", "2"), "--island N, or a file"),
        (("--topology", "none", "--nodes", "2"), "`scontrol show topology`"),
        (("--tensor-model-parallel-size", "8"), "hint: --tp 8"),
        (("--expert-model-parallel-size=4",), "hint: --ep 4"),
        (("--nnodes", "4"), "hint: --nodes 4"),
        (("--nproc_per_node", "4"), "hint: --gpus-per-node 4"),
    ],
)
def test_what_cannot_be(run: Run, args: tuple[str, ...], message: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert message in err


def test_a_bundle_without_measurements(run: Run) -> None:
    (reply,) = (Reply(node="n1", reach=Reach(), outputs={"heat": Output(stdout="20\n")}),)
    job = PreflightJob(hosts=("n1",))
    write_bundle(Path("b"), Bundle(job=job, replies=(reply,), collected_at=1.0, seconds=2.0))
    code, _, err = run("--bundle", "b")
    assert code == 2
    assert "b: nothing was measured between the nodes" in err
    assert "clusterkit preflight --network --save DIR" in err


def test_commas_are_an_order_too(run: Run) -> None:
    code, out, _ = run("--nodes", "2", "--tp", "2", "--order", "tp,dp,pp")
    assert code == 0
    assert "order tp-dp-pp-cp-ep" in out
