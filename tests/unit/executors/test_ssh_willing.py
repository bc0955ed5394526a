"""Which nodes a job over ssh starts on, and what is left where others take them meanwhile."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import files, processes
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import ClusterKind, Host, JobState
from clusterkit.executors import submit_plan
from clusterkit.executors.base import CancelledEarlyError, SchedulerState
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.dependencies import Dependencies
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.ssh import agent, ask, slots, start, states
from clusterkit.executors.ssh import executor as ssh
from clusterkit.executors.ssh import send as ssh_copy
from clusterkit.executors.ssh.ask import NodesBusy, NodesRefuse, on_available_nodes
from clusterkit.executors.ssh.layout import SshLayout, read_layout, write_layout
from clusterkit.jobs import start_queued
from clusterkit.jobs.state.load import Job, load_job
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import Output, Reach, ReachProblem
from tests.helpers.here import SessionHere
from tests.helpers.plans import make_cluster, make_plan, node_script

FREE, BUSY, BROKEN = "free", "busy", "broken"
NAMES = ("n1", "n2", "n3", "n4")


class Machines:
    """Machines that share this one's disk, in the place of those that ssh reaches.

    A node agent there is a process that sleeps.
    """

    def __init__(self) -> None:
        self.run: RunFolder | None = None
        self.are = dict.fromkeys(NAMES, FREE)
        self.late: dict[str, str] = {}
        """What machines are once they are not only asked."""
        self.asked: list[tuple[str, ...]] = []
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.dies: type[BaseException] | None = None

    def answer(
        self, cluster: object, snippets: Mapping[str, str], *, timeout_s: float, again: bool = True
    ) -> dict[str, Output | RemoteError]:
        del cluster, timeout_s, again
        self.asked.append(tuple(snippets))
        if self.dies is not None:
            raise self.dies
        return {node: self._run(node, it) for node, it in snippets.items()}

    def _run(self, node: str, snippet: str) -> Output:
        if "ssh.agent" not in snippet:
            done = subprocess.run(["sh", "-c", snippet], capture_output=True, text=True, check=True)
            return Output(exit_code=0, stdout=done.stdout, stderr="")
        check = "--check" in snippet
        if check:
            assert snippet.split()[-2:] == [node, "1"]
        now = self.are[node] if check else self.late.get(node, self.are[node])
        if now != FREE:
            said: dict[str, object] = {
                "refused": f"it is {now}",
                "kind": "busy" if now == BUSY else "other",
            }
        elif check:
            said = {"free": [0]}
        else:
            said = {"pid": self._keep(node, int(snippet.split()[-2]))}
        return Output(exit_code=0 if now == FREE else 3, stdout=json.dumps(said), stderr="")

    def _keep(self, node: str, rank: int) -> int:
        assert self.run is not None
        asleep = f"exec -a 'ssh.agent {self.run.run_id}' sleep 300"
        agent = self.agents[node] = subprocess.Popen(["bash", "-c", asleep])
        about = {
            "node": node,
            "attempt": read_layout(self.run).attempt,
            "pid": agent.pid,
            "start_time": str(processes.start_time(agent.pid)),
            "boot_id": processes.boot_id(),
        }
        files.write_json(self.run.agent(rank), about)
        return agent.pid


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    made = Machines()
    for module in (ask, start):
        monkeypatch.setattr(module, "ask_nodes", made.answer)
    yield made
    for process in made.agents.values():
        process.kill()
        process.wait()


def submitted(
    folder: Path, machines: Machines, *, array: bool = False, **changes: Any
) -> tuple[RunFolder, Submission]:
    """Return a job that is held."""
    cluster = make_cluster(
        folder,
        name="rack",
        kind=ClusterKind.SSH,
        hosts=tuple(Host(name=name) for name in NAMES),
        shared_filesystem=True,
    )
    nodes = changes.get("max_nodes") or changes.get("nodes", 2)
    changes = {"node_names": NAMES[:nodes], "slots": (1,) * nodes, **changes}
    plan = make_plan(cluster, **changes)
    run = machines.run = runfolder.create(cluster, plan.name)
    dependencies = Dependencies(array="array-0a1b2c", index=0) if array else Dependencies()
    if array:
        return run, submit_plan(
            plan, [node_script("true")], run, secrets={}, dependencies=dependencies
        )[0]
    files.write_json(run.plan, files.plain(plan))
    write_layout(run, start.layout_of(plan, run))
    submission = Submission(
        run_id=run.run_id, name=plan.name, cluster="rack", kind=ClusterKind.SSH,
        framework="torchrun", nodes=plan.nodes, max_nodes=plan.max_nodes, tasks=plan.nodes,
        submitted_at=0.0, requeue=9, spares=plan.spares,
    )  # fmt: skip
    return run, submission


def names_of(run: RunFolder) -> tuple[str, ...]:
    return read_layout(run).names


def willing(run: RunFolder, *without: str) -> SshLayout:
    return on_available_nodes(run, read_layout(run), without=without)[0]


def test_a_busy_node_is_replaced_and_taken_again_when_its_spare_is(
    tmp_path: Path, machines: Machines
) -> None:
    run, _ = submitted(tmp_path, machines, spares=1, spare_names=("n3",))
    there = (run.path / "ssh.json").read_bytes()
    machines.are["n2"] = BUSY
    layout = willing(run)
    assert (layout.names, layout.spares) == (("n1", "n3"), ("n2",))
    assert (run.path / "ssh.json").read_bytes() == there
    write_layout(run, layout)
    machines.are |= {"n2": FREE, "n3": BROKEN}
    assert willing(run).names == ("n1", "n2")
    machines.are["n2"] = BUSY
    with pytest.raises(NodesRefuse, match="n3: it is broken\nn2: it is busy"):
        willing(run)


def test_nodes_to_be_left_out_are_never_asked(tmp_path: Path, machines: Machines) -> None:
    run, _ = submitted(tmp_path, machines, spares=1, spare_names=("n3",))
    assert willing(run, "n1").names == ("n3", "n2")
    with pytest.raises(RemoteError, match="n1, n2 cannot be used"):
        willing(run, "n1", "n2")
    assert machines.asked == [("n3", "n2")]


def test_an_elastic_job_starts_again_on_what_is_left_of_all_its_nodes(
    tmp_path: Path, machines: Machines
) -> None:
    run, _ = submitted(tmp_path, machines, nodes=2, max_nodes=4)
    first = read_layout(run)
    write_layout(run, dataclasses.replace(first.on(("n1", "n2")), slots=(1, 1), tasks=2))
    machines.are["n1"] = BROKEN
    layout = willing(run, "n3")
    assert (layout.names, layout.slots, layout.tasks) == (("n2", "n4"), (1, 1), 2)
    with pytest.raises(NodesRefuse, match="n1: it is broken"):
        willing(run, "n3", "n4")
    with pytest.raises(RemoteError, match="n2, n3, n4 cannot be used, and the job needs 2 nodes"):
        willing(run, "n2", "n3", "n4")


def test_the_next_attempt_of_an_elastic_job_needs_no_node_for_itself(
    tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, submission = submitted(tmp_path, machines, nodes=2, max_nodes=3)
    node_results.note_failure(run, node_results.lost(0, "n1", "has gone"), attempt=0, n_nodes=3)
    state = SchedulerState(state=JobState.FAILED)
    monkeypatch.setattr(states, "states", lambda runs: dict.fromkeys(runs, state))
    machines.are["n1"] = BROKEN
    ssh.EXECUTOR.restart(run, submission)
    assert (names_of(run), read_layout(run).attempt) == (("n2", "n3"), 1)
    assert set(machines.agents) == {"n2", "n3"}


# Held jobs -------------------------------------------------------------------------------------


def test_all_machines_are_asked_at_once_where_the_first_ones_are_taken(
    tmp_path: Path, machines: Machines
) -> None:
    run, submission = submitted(tmp_path, machines, array=True)
    assert (names_of(run), read_layout(run).spares) == (("n1", "n2"), ("n3", "n4"))
    machines.are |= dict.fromkeys(("n1", "n2", "n3"), BUSY)
    with pytest.raises(NodesBusy):
        ssh.EXECUTOR.start_queued(run, submission)
    assert machines.asked == [("n1", "n2"), ("n3", "n4")]
    assert names_of(run) == ("n1", "n2")
    machines.are["n2"] = FREE
    ssh.EXECUTOR.start_queued(run, submission)
    assert set(machines.agents) == {"n4", "n2"}
    assert not run.queued.exists()


def test_no_job_of_an_array_runs_on_an_excluded_machine(tmp_path: Path, machines: Machines) -> None:
    run, _ = submitted(tmp_path, machines, array=True, directives={"exclude": "n[1,3]"})
    layout = read_layout(run)
    assert {*layout.names, *layout.spares} == {"n2", "n4"}


def test_a_client_that_dies_while_it_asks_changes_nothing(
    tmp_path: Path, machines: Machines
) -> None:
    run, submission = submitted(tmp_path, machines, array=True)
    before = {path: path.read_bytes() for path in run.path.iterdir() if path.is_file()}
    machines.dies = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        ssh.EXECUTOR.start_queued(run, submission)
    assert before == {path: path.read_bytes() for path in run.path.iterdir() if path.is_file()}


def test_a_client_that_dies_while_it_starts_leaves_nothing_to_start_again(
    tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, submission = submitted(tmp_path, machines, array=True)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "ask_agents", dies)
    with pytest.raises(KeyboardInterrupt):
        ssh.EXECUTOR.start_queued(run, submission)
    assert not run.queued.exists()
    state = states.state_of(run, dataclasses.replace(submission, submitted_at=0.0), (), {})
    assert state is not None  # as young as its start
    assert state.word == "starting"


def test_where_others_were_faster_the_job_stays_held_and_nothing_runs(
    tmp_path: Path, machines: Machines
) -> None:
    run, submission = submitted(tmp_path, machines, array=True)
    token = read_layout(run).token
    machines.late = dict.fromkeys(("n1",), BUSY)
    with pytest.raises(NodesBusy, match="n1: it is busy"):
        ssh.EXECUTOR.start_queued(run, submission)
    assert machines.agents["n2"].wait(120) == -9
    assert load_job(run).status.state is JobState.PENDING
    assert run.queued.exists()
    assert not run.cancelled.exists()
    assert not list(run.agents.iterdir())
    assert read_layout(run).token != token
    machines.late = {}
    ssh.EXECUTOR.start_queued(run, submission)
    assert len(list(run.agents.iterdir())) == 2


def test_a_connection_that_breaks_before_anything_was_started_ends_no_job(
    tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, submission = submitted(tmp_path, machines, array=True)
    broken = {"n2": RemoteError("the connection broke")}
    send = ssh_copy.send_files
    monkeypatch.setattr(
        ssh_copy, "send_files", lambda *a, whole, **_: broken if whole else send(*a, whole=whole)
    )
    with pytest.raises(NodesRefuse, match="n2: the connection broke"):
        ssh.EXECUTOR.start_queued(run, submission)
    assert run.queued.exists()
    assert not run.state.exists()
    assert not run.cancelled.exists()


def test_a_node_that_refuses_in_the_last_moment_ends_a_held_job(
    tmp_path: Path, machines: Machines
) -> None:
    run, submission = submitted(tmp_path, machines, array=True)
    machines.late["n2"] = BROKEN
    with pytest.raises(NodesRefuse, match="n2: it is broken"):
        ssh.EXECUTOR.start_queued(run, submission)
    assert load_job(run).status.state is JobState.FAILED
    assert machines.agents["n1"].wait(120) == -15


def test_a_cancel_while_it_starts_is_no_failure(
    tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order to end may reach a node agent before that has answered its client."""
    run, submission = submitted(tmp_path, machines, array=True)
    machines.late["n2"] = BROKEN
    real = ask.ask_agents

    def cancelled_meanwhile(*arguments: Any) -> dict[str, RemoteError]:
        files.create_text(run.cancelled, "")
        return real(*arguments)

    monkeypatch.setattr(start, "ask_agents", cancelled_meanwhile)
    with pytest.raises(CancelledEarlyError, match="it was cancelled while it was being started"):
        ssh.EXECUTOR.start_queued(run, submission)
    assert load_job(run).status.state is JobState.CANCELLED
    assert machines.agents["n1"].wait(10) == -15
    assert not list(run.failures.iterdir())


# Attempts --------------------------------------------------------------------------------------


def test_a_busy_node_is_not_noted_as_lost(tmp_path: Path, machines: Machines) -> None:
    run, _ = submitted(tmp_path, machines)
    layout = dataclasses.replace(read_layout(run), attempt=1)
    old = {"node": "n2", "attempt": 0, "pid": 1, "start_time": "7", "boot_id": "b"}
    files.create_folder(run.agents)
    files.write_json(run.agent(0), old)
    machines.late["n2"] = BUSY
    with pytest.raises(NodesBusy):
        start.start(run, layout)
    assert not list(run.failures.iterdir())
    assert files.read_json(run.agent(0)) == old  # as if there had been no attempt
    machines.late["n1"] = BROKEN
    machines.late["n2"] = BUSY
    with pytest.raises(NodesRefuse):
        start.start(run, layout)
    (failure,) = node_results.read_failures(run)
    assert failure.node == "n1"


def test_a_node_says_whether_it_would_be_taken_whatever_its_rank(
    tmp_path: Path, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = submitted(tmp_path, machines)
    assert agent.main([str(run.path), "--check", "n4", "1"]) == 0
    assert "free" in json.loads(capsys.readouterr().out)
    layout = dataclasses.replace(read_layout(run), version="0.0")
    write_layout(run, layout)
    assert agent.main([str(run.path), "--check", "n4", "1"]) == agent.REFUSED
    assert "0.0 here" in json.loads(capsys.readouterr().out)["refused"]


def test_a_keeper_that_comes_too_late_does_not_take_part_in_another_attempt(
    tmp_path: Path,
    machines: Machines,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, _ = submitted(tmp_path, machines)
    layout = dataclasses.replace(read_layout(run), attempt=1)
    # That of the attempt before is seen a little longer.
    monkeypatch.setattr(time, "sleep", lambda _: write_layout(run, layout))
    assert agent._layout_of(run, attempt=1) == layout
    assert agent.main([str(run.path), "0", "0"]) == agent.REFUSED
    assert "this is attempt 1, and 2 is to run" in json.loads(capsys.readouterr().out)["refused"]


def test_a_keeper_leaves_the_end_of_its_rank_to_who_has_it_now(
    tmp_path: Path, machines: Machines
) -> None:
    run, _ = submitted(tmp_path, machines)
    held = slots.take(1, 1, job="mine", node="n1", space=tmp_path.name)
    kept = agent._NodeAgent(run, read_layout(run), 0, held)
    held.release()
    files.create_folder(run.agents)
    files.create_folder(run.ends)
    files.write_json(run.agent(0), {**kept.about, "attempt": 1})
    result = node_results.lost(0, "n1", "has gone")
    kept.write_end(result)
    assert not run.end(0).exists()
    kept.write_about()
    kept.write_end(result)
    assert run.end(0).exists()


def test_nodes_that_share_a_folder_which_each_should_have_for_itself_refuse(
    tmp_path: Path, machines: Machines
) -> None:
    """Else each would read the other's files as its own, and the job end as unknown."""
    run, _ = submitted(tmp_path, machines)
    files.create_folder(run.agents)
    layout = dataclasses.replace(read_layout(run), attempt=1)
    apart = dataclasses.replace(layout.cluster, shared_filesystem=False)
    held = slots.take(1, 1, job="mine", node="n1", space=tmp_path.name)
    try:
        for cluster, refuses in ((layout.cluster, False), (apart, True)):
            kept = agent._NodeAgent(run, dataclasses.replace(layout, cluster=cluster), 0, held)
            # Of an attempt in which the node had another rank:
            files.write_json(run.agent(1), {"node": "n1", "attempt": 0})
            kept.write_about()
            files.write_json(run.agent(1), {"node": "n2", "attempt": 1})
            if refuses:
                with pytest.raises(agent.SharedFolderError, match=r"it shares .* with n2") as why:
                    kept.write_about()
                assert agent._refusal(why.value)["kind"] == "shared"
            else:
                kept.write_about()
    finally:
        held.release()


def test_a_node_that_sees_the_folder_of_its_client_gets_no_files(
    tmp_path: Path, machines: Machines
) -> None:
    run, _ = submitted(tmp_path, machines)
    python = tmp_path / ".clusterkit" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    shared = tmp_path / ".clusterkit" / "runs"
    layout = read_layout(run)
    apart = dataclasses.replace(layout.cluster, shared_filesystem=False)
    layout = dataclasses.replace(layout, cluster=apart)
    (run.path / ssh_copy._CLIENTS).touch()
    own = ssh_copy._own_files(run)
    told = lambda *_: None  # noqa: E731
    session = SessionHere(tmp_path)
    try:
        ssh_copy._send(session, run, layout, own, None, told)
        assert (shared / run.run_id / "ssh.json").exists()
        shutil.rmtree(shared)
        shared.symlink_to(run.path.parent)
        with pytest.raises(RemoteError, match="shares the run folder with this machine") as why:
            ssh_copy._send(session, run, layout, own, None, told)
    finally:
        session.leave()
    assert "`shared_filesystem: true` for cluster rack" in (why.value.hint or "")


def test_a_damaged_folder_keeps_no_other_job_of_its_array_back(
    tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [submitted(tmp_path, machines, array=True)[0] for _ in range(4)]
    jobs: list[Job] = [load_job(run) for run in runs]
    seen = []

    class Queue:
        def start_queued(self, run: RunFolder, submission: Submission) -> None:
            del submission
            seen.append(run)
            if run == runs[0]:
                raise UserError("damaged")
            if run == runs[2]:
                raise RemoteError("busy")

    monkeypatch.setattr(start_queued, "executor_of", lambda *_, **__: Queue())
    assert "waits: damaged" in (start_queued.start_due(jobs) or "")
    assert seen == runs[:3]


class Silent:
    """The transport to nodes that nobody reaches."""

    def __init__(self, problem: ReachProblem) -> None:
        self.problem, self.asked = problem, 0

    def ask_each(self, compounds: Mapping[str, object], **_: object) -> list[Reply]:
        self.asked += 1
        return [Reply(node=node, reach=Reach(problem=self.problem)) for node in compounds]


@pytest.mark.parametrize(
    ("problem", "asked"),
    [(ReachProblem.TIMEOUT, 1), (ReachProblem.UNREACHABLE, 1), (ReachProblem.AUTH, 2)],
)
def test_a_node_that_was_not_reached_is_not_waited_for_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: ReachProblem, asked: int
) -> None:
    silent = Silent(problem)
    monkeypatch.setattr(ask, "by_ssh", lambda _: silent)
    monkeypatch.setattr(ask, "_unreached", {})
    monkeypatch.setattr(ask, "_MOMENT_S", 60.0)
    cluster = make_cluster(tmp_path, kind=ClusterKind.SSH)
    for _ in range(2):
        answers = ask.ask_nodes(cluster, {"n2": "true"}, timeout_s=1, again=False)
        assert isinstance(answers["n2"], RemoteError)
    assert silent.asked == asked
    ask.ask_nodes(cluster, {"n2": "true"}, timeout_s=1)  # who ends a job tries all the same
    assert silent.asked == asked + 1
    monkeypatch.setattr(ask, "_MOMENT_S", 0.0)
    ask.ask_nodes(cluster, {"n2": "true"}, timeout_s=1, again=False)
    assert silent.asked == asked + 2
