"""Which losses an elastic job survives, and what is told of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterkit.core.errors import UserError
from clusterkit.core.model import (
    ClusterKind,
    ClusterSpec,
    GpuRequest,
    HorovodController,
    NodeResult,
)
from clusterkit.executors.node import coordinator
from clusterkit.executors.node import peers as calls
from clusterkit.executors.node.coordinator import join
from clusterkit.executors.node.partition import PeerState
from clusterkit.executors.node.peers import PeerConnection
from clusterkit.executors.run import attempts, node_results
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh.layout import SshLayout
from clusterkit.launch.options import JobSpec
from clusterkit.launch.plan import make_plan
from tests.helpers.port_ranges import next_range

NAMES = ("127.0.0.1", "n2", "n3", "n4")
SLURM = ClusterSpec(name="a100", kind=ClusterKind.SLURM, gpus_per_node=4)


def ended(rank: int, code: int = 0, at: float = 2.0, reason: str | None = None) -> NodeResult:
    return NodeResult(
        node_rank=rank, node=f"n{rank + 1}", exit_code=code, started_at=1.0, ended_at=at,
        reason=reason,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("failed", "named"),
    [
        ([ended(1, 9)], None),
        ([ended(1, 9), ended(2, 9, at=1.5)], None),
        ([ended(1, 9), ended(2, 9, at=1.5), ended(3, 1)], "n3"),
        ([ended(0, 9)], "n1"),
        ([ended(1, 143, reason="cancelled"), ended(0, 143, reason="cancelled")], None),
    ],
)
def test_a_job_ends_with_its_first_node_and_when_too_few_are_left(
    failed: list[NodeResult], named: str | None
) -> None:
    fatal = attempts.fatal(failed, n_nodes=4, min_nodes=2)
    assert (fatal and fatal.node) == named


def test_success_is_that_of_the_first_node_and_of_enough_others() -> None:
    assert attempts.succeeded([ended(0), ended(1), ended(2, 9)], min_nodes=2)
    assert not attempts.succeeded([ended(0), ended(1, 9), ended(2, 9)], min_nodes=2)
    assert not attempts.succeeded([ended(0, 1), ended(1), ended(2)], min_nodes=2)


def test_losses_are_those_who_no_longer_train() -> None:
    rounds = (("n1", "n2", "n3"), ("n1", "n3"), ("n1", "n2"))
    assert attempts.losses(rounds, []) == "without n3"
    assert attempts.losses(rounds[:1], [ended(1, 9)]) == "without n2"
    assert attempts.losses(rounds[:1], [ended(1)]) is None


def test_rounds_are_read_up_to_a_line_that_is_not_whole(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert node_results.read_rounds(run, 0) == ()
    run.nodes.mkdir()
    run.rounds(0).write_text('{"nodes": ["n1", "n2"]}\n{"nodes": ["n1"]}\n{"nod')
    assert node_results.read_rounds(run, 0) == (("n1", "n2"), ("n1",))


def test_only_what_ends_the_job_becomes_its_failure(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for folder in (run.nodes, run.failures):
        folder.mkdir()
    gone = node_results.lost(2, "n3", "no longer answers")
    for result in (gone, ended(2, 1)):  # it may not know that the others have given it up
        node_results.write_result(run, result, attempt=0, n_nodes=4, min_nodes=2)
        assert node_results.read_result(run, 2, 0) == gone
    node_results.write_result(
        run, ended(1, 9, at=time.time() + 9), attempt=0, n_nodes=4, min_nodes=2
    )
    assert node_results.first_failure(run, 0) is None
    node_results.write_result(
        run, ended(3, 7, at=time.time() + 9), attempt=0, n_nodes=4, min_nodes=2
    )
    assert node_results.first_failure(run, 0) == gone


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PeerConnection]]:
    """Four nodes over ssh that share a run folder, and of which two are enough."""
    monkeypatch.setattr(calls, "CALL_EVERY_S", 0.1)
    for module in (calls, coordinator):
        monkeypatch.setattr(module, "SILENCE_S", 2.0)
        monkeypatch.setattr(module, "START_TIMEOUT_S", 3.0)
    monkeypatch.setattr(calls, "HEAD_SILENCE_S", 4.0)
    layout = SshLayout(
        job_id=f"ssh-{tmp_path.name}", names=NAMES, slots=(1,) * 4, tasks=4,
        least=2, ports=next_range(), token="f" * 32, command=("true",), logs=str(tmp_path),
        cluster=ClusterSpec(name="rack", kind=ClusterKind.SSH),
    )  # fmt: skip
    run = RunFolder(tmp_path / "run")
    for folder in (run.nodes, run.failures):
        folder.mkdir(parents=True)
    made = []
    for rank in range(4):
        news = PeerState(run, layout)
        news.begin()
        made.append(join(rank, news, layout.candidates))
    yield made
    for link in reversed(made):
        link.leave()
        link.peer_state.end()


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 50
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def silence(link: PeerConnection) -> None:
    link._call = lambda: None  # type: ignore[method-assign]


def blamed(link: PeerConnection) -> str | None:
    return node_results.failure_text(link.peer_state.failure) if link.peer_state.failure else None


def test_over_ssh_the_others_go_on_without_a_node_that_falls_silent(
    nodes: list[PeerConnection],
) -> None:
    for link in nodes:
        link.begin()
    assert all(link.await_go() for link in nodes)
    run = nodes[0].peer_state.run
    silence(nodes[3])
    until(lambda: node_results.read_result(run, 3, 0))
    until(lambda: blamed(nodes[3]))  # which has to end: it has lost the first node
    assert [blamed(link) for link in nodes[:3]] == [None] * 3
    assert node_results.first_failure(run, 0) is None
    silence(nodes[2])
    until(lambda: node_results.read_result(run, 2, 0))
    assert blamed(nodes[0]) is None
    silence(nodes[1])
    until(lambda: blamed(nodes[0]))
    assert blamed(nodes[0]) == "n4 no longer answers"


def test_over_ssh_a_node_that_never_comes_does_not_hold_the_others_up(
    nodes: list[PeerConnection],
) -> None:
    for link in nodes[:3]:
        link.begin()
    assert all(link.await_go() for link in nodes[:3])
    until(lambda: node_results.read_result(nodes[0].peer_state.run, 3, 0))


JOB = JobSpec(framework="torchrun", script="train.py", nodes=2, max_nodes=3)


def test_slurm_is_asked_for_as_many_nodes_as_there_are_and_to_let_them_go() -> None:
    directives = make_plan(JOB, SLURM, workdir="/w").directives
    assert directives["nodes"] == "2-3"
    assert directives["no-kill"] is None
    assert "ntasks-per-node" not in directives
    per_task = dataclasses.replace(SLURM, gpu_request=GpuRequest.GPUS_PER_TASK)
    assert make_plan(JOB, per_task, workdir="/w").directives["ntasks-per-node"] == "1"


def test_an_elastic_horovod_brings_its_driver() -> None:
    job = dataclasses.replace(JOB, framework="horovod", launcher_options={"reset-limit": "4"})
    command = make_plan(job, SLURM, workdir="/w").command
    assert {"--min-nodes=2", "--min-processes=8", "--reset-limit=4"} < set(command.argv)
    ours = {"clusterkit_peers.py", "horovod_rendezvous.py"}
    assert set(command.files) == {"elastic.py"} | ours


@pytest.mark.parametrize(
    ("options", "controller", "said"),
    [
        ({"cycle": "1"}, HorovodController.GLOO, "no launcher option 'cycle'"),
        ({}, HorovodController.MPI, "cannot change its number of nodes"),
    ],
)
def test_what_an_elastic_horovod_cannot_do_is_refused(
    options: dict[str, str], controller: HorovodController, said: str
) -> None:
    job = dataclasses.replace(JOB, framework="horovod", launcher_options=options)
    with pytest.raises(UserError, match=said):
        make_plan(job, dataclasses.replace(SLURM, horovod_controller=controller), workdir="/w")
