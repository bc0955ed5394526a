"""What is concluded from the node agents of a job over ssh, and from what the nodes say of them."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import files, processes
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import ClusterKind, JobState, NodeResult
from clusterkit.executors.run import node_results, submit_journal
from clusterkit.executors.run.runfolder import RunFolder, Submission, write_submission
from clusterkit.executors.ssh import fetch, submit
from clusterkit.executors.ssh import states as ssh_runs
from clusterkit.executors.ssh.agent_files import NodeAgent, read_agents
from clusterkit.executors.ssh.layout import LAYOUT, read_layout, write_layout
from clusterkit.executors.ssh.start import layout_of
from clusterkit.executors.ssh.states import Life, state_of
from clusterkit.jobs.state.load import load_jobs
from tests.helpers.plans import make_cluster, make_plan


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "job-20261121-120000-abcdef")
    for folder in (made.agents, made.ends, made.nodes, made.failures):
        folder.mkdir(parents=True)
    return made


def agent(rank: int, ended_as: JobState | None = None, code: int | None = None) -> NodeAgent:
    return NodeAgent(
        rank=rank,
        node=f"n{rank + 1}",
        attempt=0,
        pid=100 + rank,
        start_time="7",
        boot_id="b",
        ended_as=ended_as,
        exit_code=code,
    )


def submission(age_s: float = 0.0) -> Submission:
    return Submission(
        run_id="job-20261121-120000-abcdef",
        name="job",
        cluster="rack",
        kind=ClusterKind.SSH,
        framework="torchrun",
        nodes=2,
        tasks=2,
        submitted_at=time.time() - age_s,
    )


def concluded(
    run: RunFolder, *agents: NodeAgent, lives: dict[NodeAgent, Life] | None = None
) -> tuple[JobState, str | None]:
    state = state_of(run, submission(), agents, lives or {})
    assert state is not None
    return state.state, state.reason


def test_without_keepers_only_a_young_job_is_believed_in(run: RunFolder) -> None:
    young = state_of(run, submission(), (), {})
    assert young is not None
    assert young.state is JobState.PENDING
    assert state_of(run, submission(age_s=1000), (), {}) is None


def test_one_that_lives_is_enough_to_run(run: RunFolder) -> None:
    first, second = agent(0, JobState.SUCCEEDED, 0), agent(1)
    assert concluded(run, first, second, lives={second: Life.ALIVE})[0] is JobState.RUNNING


@pytest.mark.parametrize(
    ("states", "together"),
    [
        ((JobState.SUCCEEDED, JobState.SUCCEEDED), JobState.SUCCEEDED),
        ((JobState.SUCCEEDED, JobState.CANCELLED), JobState.CANCELLED),
        ((JobState.TIMEOUT, JobState.CANCELLED), JobState.TIMEOUT),
        ((JobState.TIMEOUT, JobState.FAILED), JobState.FAILED),
    ],
)
def test_the_worst_end_is_that_of_the_job(
    run: RunFolder, states: tuple[JobState, JobState], together: JobState
) -> None:
    agents = [agent(rank, state, 1) for rank, state in enumerate(states)]
    assert concluded(run, *agents)[0] is together


def test_functions_need_a_shared_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_cluster(tmp_path, kind=ClusterKind.SSH, shared_filesystem=False)
    monkeypatch.setattr(submit, "_cluster", lambda _: spec)
    with pytest.raises(UserError, match="share no file system, and functions need one"):
        submit.start_function(tmp_path, {}, 1)


def test_nodes_that_share_nothing_run_in_folders_of_their_own(tmp_path: Path) -> None:
    spec = make_cluster(tmp_path, kind=ClusterKind.SSH, shared_filesystem=False)
    run = RunFolder(tmp_path / "train-20261121-101500-4f06f8")
    run.path.mkdir()
    write_layout(run, layout_of(make_plan(spec), run))
    layout = read_layout(run)
    assert layout.folder(run) == f"~/.clusterkit/runs/{run.run_id}"
    assert layout.python == "~/.clusterkit/venv/bin/python"
    there = layout.at_home(RunFolder(Path("/home/other/.clusterkit/runs") / run.run_id))
    assert there.command[-1] == f"/home/other/.clusterkit/runs/{run.run_id}"
    assert there.command[0] == sys.executable
    assert there.logs == f"/home/other/.clusterkit/runs/{run.run_id}/submitit"


def test_a_silent_node_leaves_it_unknown_and_a_restarted_one_does_not(run: RunFolder) -> None:
    first, second = agent(0, JobState.SUCCEEDED, 0), agent(1)
    assert concluded(run, first, second, lives={second: Life.SILENT}) == (
        JobState.UNKNOWN,
        "no answer from n2",
    )
    assert concluded(run, first, second, lives={second: Life.REBOOTED}) == (
        JobState.FAILED,
        "n2 was restarted",
    )
    run.cancelled.touch()
    killed = concluded(run, first, second, lives={second: Life.GONE})
    assert killed == (JobState.CANCELLED, "the node agent of n2 was killed")


def test_the_first_failure_is_named(run: RunFolder) -> None:
    lost = NodeResult(
        node_rank=1,
        node="n2",
        exit_code=255,
        started_at=0.0,
        ended_at=0.0,
        lost="no longer answers",
    )
    node_results.note_failure(run, lost, attempt=0, n_nodes=2)
    silent = agent(1)
    assert concluded(run, agent(0, JobState.FAILED, 143), silent, lives={silent: Life.SILENT}) == (
        JobState.FAILED,
        "n2 no longer answers",
    )


def test_where_the_disk_was_full_a_keeper_without_a_word_was_not_killed(run: RunFolder) -> None:
    for rank, code in ((0, 0), (1, 7)):
        brief = NodeResult(
            node_rank=rank, node=f"n{rank + 1}", exit_code=code, started_at=0.0, ended_at=1.0
        )
        full = UserError("cannot write it")
        full.__cause__ = OSError(errno.EDQUOT, "x")
        node_results.note_unwritten(run, brief, full, attempt=0, of=2)
    found = node_results.read_results(run)
    assert [(r.node, r.exit_code) for r in found.nodes] == [("n1", 0), ("n2", 7)]
    told = node_results.unwritten_in_words(found.nodes)
    assert told == "n[1-2] could not write all of the output, or how it ended: " + os.strerror(
        errno.EDQUOT
    )
    first, second = agent(0), agent(1)
    gone = {first: Life.GONE, second: Life.GONE}
    assert concluded(run, first, second, lives=gone) == (JobState.FAILED, None)


def test_where_the_disk_was_full_before_the_start_nobody_is_said_to_have_exited(
    run: RunFolder,
) -> None:
    full = UserError("cannot write it")
    full.__cause__ = OSError(errno.ENOSPC, "x")
    for rank in range(2):
        brief = NodeResult(
            node_rank=rank, node=f"n{rank + 1}", exit_code=74, started_at=0.0, ended_at=1.0,
            message=node_results.UNBEGUN,
        )  # fmt: skip
        node_results.note_unwritten(run, brief, full, attempt=0, of=2)
    found = node_results.read_results(run).nodes
    assert [(r.exit_code, r.message) for r in found] == [(74, "could not begin")] * 2
    why = "n[1-2] could not begin, or write anything: No space left on device"
    assert node_results.unwritten_in_words(found) == why
    assert node_results.unwritten_failure(found) is None
    assert files.why_no_room(full) == "No space left on device"
    assert files.why_no_room(UserError("refused")) is None


def test_torn_files_and_ends_of_an_earlier_attempt_are_left_out(run: RunFolder) -> None:
    about = {"node": "n1", "attempt": 1, "pid": 5, "start_time": "7", "boot_id": "b"}
    files.write_json(run.agent(0), about)
    files.write_json(run.end(0), {**about, "attempt": 0, "state": "succeeded", "exit_code": 0})
    run.agent(1).write_text('{"node": "n2"')
    run.agents.joinpath("x.json").write_text("{}")
    (found,) = read_agents(run)
    assert (found.node, found.ended_as) == ("n1", None)


def lost(folder: Path, name: str, **cluster: Any) -> RunFolder:
    """Return a run that was handed over by a client which died before it had noted an id."""
    run = RunFolder(folder / f"{name}-20261121-120000-abcdef")
    run.agents.mkdir(parents=True)
    plan = make_plan(make_cluster(folder, kind=ClusterKind.SSH, **cluster))
    plan = dataclasses.replace(plan, node_names=("n1", "n2"))
    write_layout(run, layout_of(plan, run))
    write_submission(run, dataclasses.replace(submission(), run_id=run.run_id, name=name))
    begun = submit_journal.Handing(
        client=submit_journal.ProcessId.own(), began_at=time.time() - 600
    )
    files.write_json(run.handing, dataclasses.replace(begun, at=begun.began_at, answered_at=9.0))
    return run


def test_a_run_that_cannot_be_fetched_silences_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it known then that nothing runs, of runs whose client noted no job id."""
    dead = RemoteError("no route to host", node="n2")
    monkeypatch.setattr(fetch, "on_nodes", lambda *_: {"n2": dead})
    damaged, well = lost(tmp_path, "damaged"), lost(tmp_path, "well")
    afar = lost(tmp_path, "afar", shared_filesystem=False)
    (damaged.path / LAYOUT).write_text("{}")
    for rank in (0, 1):
        about = {"node": f"n{rank + 1}", "attempt": 0, "pid": 5, "start_time": "7", "boot_id": "b"}
        files.write_json(well.agent(rank), about)
        files.create_folder(well.ends)
        files.write_json(well.end(rank), {**about, "state": "succeeded", "exit_code": 0})
    told = {job.run: job.status for job in load_jobs([damaged, well, afar])}
    assert told[well].state is JobState.SUCCEEDED
    assert told[damaged].state is told[afar].state is JobState.UNKNOWN
    assert "ssh.json is damaged" in (told[damaged].reason or "")
    assert told[afar].reason == "n2: no route to host"


def test_a_damaged_run_hides_no_keeper_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks the nodes of a cluster takes how from one of its runs: from one that can say it."""
    monkeypatch.setattr(ssh_runs, "look_for", lambda _, all_: dict.fromkeys(all_, Life.ALIVE))
    well, damaged = lost(tmp_path, "well"), lost(tmp_path, "damaged")
    for run in (well, damaged):
        about = {"node": "n1", "attempt": 0, "pid": 5, "start_time": "7", "boot_id": "b"}
        files.write_json(run.agent(0), about)
    (damaged.path / LAYOUT).write_text("{}")
    os.utime(well.path, (1e9, 1e9))
    runs = dict.fromkeys((damaged, well), submission())
    assert ssh_runs.states(runs)[well].state is JobState.RUNNING
    assert well in ssh_runs.lingering(runs)


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({}, "alive"),
        ({"start_time": "1"}, "gone"),
        ({"pid": 2**22 - 1}, "gone"),
        ({"boot_id": "of last week"}, "rebooted"),
    ],
)
def test_a_node_tells_a_keeper_from_another_process(change: dict[str, object], answer: str) -> None:
    about = {
        "rank": 0,
        "node": "n1",
        "attempt": 0,
        "pid": os.getpid(),
        "start_time": str(processes.start_time(os.getpid())),
        "boot_id": processes.boot_id(),
        "ended_as": None,
        **change,
    }
    question = ssh_runs.question(NodeAgent(**about))
    said = subprocess.run(["sh", "-c", question], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == answer
