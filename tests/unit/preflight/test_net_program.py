"""The programs of the network preflight: who meets whom, and a run between loopback addresses."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.core.data import data_dir
from clusterkit.preflight.network import FirstPass, disjoint, second_pass
from clusterkit.preflight.probes.net import allreduce, links
from clusterkit.transport.probe import PreflightJob
from tests.helpers.loading import load
from tests.helpers.needs import require
from tests.helpers.probe_run import SHELLS

PROGRAMS = data_dir("templates/programs/preflight")
HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
PORT = 14000 + 10 * (os.getpid() % 400)  # none that jobs take
"""The first of some ports that no other process of the test run uses."""


netnode = load(PROGRAMS / "netnode.py")


@given(st.integers(2, 80))
def test_all_pairs_meet_once_in_disjoint_rounds(count: int) -> None:
    rounds = list(netnode.circle(count, count))
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == list(combinations(range(count), 2))
    assert len(rounds) == count - 1 + count % 2
    for pairs in rounds:
        nodes = [node for pair in pairs for node in pair]
        assert len(nodes) == len(set(nodes)) == count - count % 2


@given(st.integers(2, 100), st.integers(1, 63))
def test_sampled_rounds_give_every_node_about_as_many_partners(count: int, most: int) -> None:
    rounds = list(netnode.circle(count, most))
    assert len(rounds) == min(most, count - 1 + count % 2)
    partners = [sum(p is not None for p in netnode.peers_of(me, rounds)) for me in range(count)]
    assert max(partners) - min(partners) <= 1


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(10, 19))), st.integers(1, 12))
def test_second_looks_are_disjoint_and_leave_out_only_what_does_not_fit(
    pairs: set[tuple[int, int]], most: int
) -> None:
    rounds = disjoint(iter(pairs), most=most)
    assert len(rounds) <= most
    kept = [pair for met in rounds for pair in met]
    assert set(kept) <= pairs
    assert len(kept) == len(set(kept))
    for met in rounds:
        nodes = [node for pair in met for node in pair]
        assert len(nodes) == len(set(nodes))
    if len(rounds) < most:
        assert set(kept) == pairs
    text = ";".join(",".join(f"{low}-{high}" for low, high in met) for met in rounds)
    if text:
        assert [tuple(met) for met in netnode.read_rounds(text, 20, 1)] == list(rounds)


def test_the_second_pass_pairs_suspects_with_good_nodes() -> None:
    def rounds(good: str, suspect: str, untried: str = "", slow: str = "") -> object:
        pairs = [(pair[0], pair[1]) for pair in slow.split()]
        first = FirstPass(good={*good}, suspect={*suspect}, untried={*untried}, slow=pairs)
        return second_pass(first, order=("a", "b", "c", "d", "e"))

    assert rounds("cd", "ab", "e") == (((0, 2), (1, 3)), ((2, 4),))
    assert rounds("", "ab", "c") == (((0, 2),), ((1, 2),))
    assert rounds("", "ab") == ()
    assert rounds("ab", "") == ()
    # A slow pair meets once more, as the other one that it was compared with does not.
    assert rounds("cd", "ab", slow="ab ba") == (((0, 1),), ((0, 2), (1, 3)))


def run(snippet: str, shell: tuple[str, ...], absent: str = "") -> dict[str, tuple[int, str]]:
    """Run a snippet once for each host, as Slurm would name it; return exit code and output."""
    require(shell[0])
    running = {
        host: subprocess.Popen(
            [*shell, "-c", snippet],
            env={**os.environ, "SLURMD_NODENAME": host},
            stdout=subprocess.PIPE,
            text=True,
        )
        for host in HOSTS
        if host != absent
    }
    said = {}
    for host, process in running.items():
        with process:
            out, _ = process.communicate(timeout=90)
        said[host] = (process.returncode, out)
    return said


@pytest.mark.parametrize("shell", SHELLS)
def test_all_nodes_meet(shell: tuple[str, ...]) -> None:
    snippet = links.links_snippet(PreflightJob(hosts=HOSTS, port=PORT), run="x")
    assert snippet is not None
    for host, (code, out) in run(snippet, shell).items():
        assert code == 0
        facts = links.parse(out)
        assert sorted(facts.reach) == [(other, "ok") for other in HOSTS if other != host]
        assert {met.peer for met in facts.meetings} == {*HOSTS} - {host}
        assert all((met.bytes_per_s or 0) > 1e6 for met in facts.meetings)
        assert facts.head == (None if host == HOSTS[0] else "ok")


def test_an_absent_node_costs_its_partners_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "WINDOW_S", 20.0)
    snippet = links.links_snippet(PreflightJob(hosts=HOSTS, port=PORT), run="x")
    assert snippet is not None
    for host, (code, out) in run(snippet, ("sh",), absent=HOSTS[2]).items():
        assert code == 0
        facts = links.parse(out)
        other = next(h for h in HOSTS[:2] if h != host)
        assert dict(facts.reach) == {other: "ok", HOSTS[2]: "refused"}
        assert {met.peer: met.status for met in facts.meetings} == {
            other: "ok",
            HOSTS[2]: "refused",
        }


def test_a_pair_all_reduces_and_the_odd_node_rests() -> None:
    job = PreflightJob(
        hosts=HOSTS, port=PORT, python=sys.executable, env={"GLOO_SOCKET_IFNAME": "lo"}
    )
    snippet = allreduce.allreduce_snippet(job)
    assert snippet is not None
    said = run(snippet, ("sh",))
    assert {code for code, _ in said.values()} == {0}
    facts = {host: allreduce.parse(out) for host, (_, out) in said.items()}
    assert [(e.peer, e.status) for e in facts[HOSTS[0]].exercises] == [(HOSTS[1], "ok")]
    assert (facts[HOSTS[0]].exercises[0].bus_bytes_per_s or 0) > 1e6
    assert facts[HOSTS[2]].exercises == ()


def test_a_node_that_is_none_of_the_hosts_says_so() -> None:
    snippet = links.links_snippet(PreflightJob(hosts=("198.51.100.1", "198.51.100.2")))
    done = subprocess.run(["sh", "-c", snippet or ""], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "none of the job's hosts" in done.stderr


def test_one_node_has_nobody_to_meet() -> None:
    job = PreflightJob(hosts=("n1",))
    assert links.links_snippet(job) is None
    assert allreduce.allreduce_snippet(job) is None


def test_a_name_that_leads_to_another_node_is_told() -> None:
    job = PreflightJob(hosts=("127.0.0.2", "localhost"), port=PORT)
    snippet = links.links_snippet(job, run="x")
    done = subprocess.run(
        ["sh", "-c", snippet or ""],
        env={**os.environ, "SLURMD_NODENAME": "127.0.0.2"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert links.parse(done.stdout).reach == (("localhost", "wrong:127.0.0.2"),)


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.name)
def test_programs_are_python_3_6(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 6))
