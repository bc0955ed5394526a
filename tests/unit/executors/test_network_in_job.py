"""The network between the nodes of a job that were down before it: measured once they are up."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from clusterkit.core import files
from clusterkit.core.model import ClusterKind
from clusterkit.executors.node import Identity
from clusterkit.executors.node.network import network_fault
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.preflight.gate import node_checks
from tests.helpers.plans import environment, make_cluster, make_plan

SLOW = "NET003 bandwidth from node-1 is low with most other nodes"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    cluster = make_cluster(tmp_path, kind=ClusterKind.SLURM)
    run = runfolder.create(cluster, "toy")
    files.write_json(run.node_checks, node_checks(make_plan(cluster, nodes=2), network=True))
    return run


def node(rank: int) -> Identity:
    return Identity.from_environment(environment(rank, 2))


def test_a_node_waits_for_what_the_first_one_finds(run: RunFolder) -> None:
    found = {"lines": [SLOW], "unfit": {"node-1": SLOW}}
    later = threading.Timer(0.3, files.write_json, (run.network(0), found))
    later.start()
    assert network_fault(run, node(1)) == SLOW
    later.join()
    assert network_fault(run, node(0)) is None
    assert run.log(0).read_text() == f"--- clusterkit: checks of node-0 before the start\n{SLOW}\n"


@pytest.mark.parametrize("text", ["[]", '{"unfit": 3}', '{"unfit": {"node-1": ["x"]}, "lines": 1}'])
def test_what_makes_no_sense_is_no_fault(run: RunFolder, text: str) -> None:
    run.network(0).write_text(text)
    files.create_text(run.cancelled, "")  # of what is no object, more is waited for
    assert [network_fault(run, node(rank)) for rank in (0, 1)] == [None, None]


def test_a_network_that_cannot_be_measured_keeps_no_node_from_its_job(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in environment(0, 2).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert network_fault(run, node(0)) is None
    assert "the network could not be checked" in run.log(0).read_text()
    assert network_fault(run, node(1)) is None


def test_nobody_waits_once_another_node_has_failed(run: RunFolder) -> None:
    lost = node_results.lost(0, "node-0", "is unhealthy")
    node_results.note_failure(run, lost, attempt=0, n_nodes=2)
    assert network_fault(run, node(1)) is None


@pytest.mark.parametrize(
    ("kind", "nodes", "measured"),
    [(ClusterKind.SLURM, 2, True), (ClusterKind.SLURM, 1, False), (ClusterKind.SSH, 2, False)],
)
def test_only_nodes_that_slurm_may_wake_are_measured_in_the_job(
    tmp_path: Path, kind: ClusterKind, nodes: int, measured: bool
) -> None:
    plan = make_plan(make_cluster(tmp_path, kind=kind), nodes=nodes)
    assert node_checks(plan, network=True)["network"] is measured
    assert node_checks(plan)["network"] is False
