"""Where a job starts in the copy of its folder, and what of nodes is believed."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import files
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import (
    ClusterKind,
    ClusterSpec,
    ContainerRuntime,
    Host,
    NodeResult,
    SyncPlan,
)
from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh.agent_files import read_agents
from clusterkit.executors.ssh.ask import NodesBusy, refused
from clusterkit.executors.ssh.fetch import decide_first_failure, settle
from clusterkit.executors.ssh.inbox import relative
from clusterkit.executors.ssh.layout import SshLayout
from clusterkit.executors.ssh.node_files import NodeFiles, Progress
from clusterkit.executors.ssh.slots import SlotsBusy
from clusterkit.launch.options import JobSpec
from clusterkit.launch.plan import make_plan
from tests.helpers.here import SessionHere

APART = ClusterSpec(
    name="apart",
    kind=ClusterKind.SSH,
    hosts=(Host(name="n1"), Host(name="n2"), Host(name="n3")),
    shared_filesystem=False,
)

AGENT = {"node": "n2", "attempt": 0, "pid": 77, "start_time": "7", "boot_id": "b"}
END = {**AGENT, "state": "failed", "exit_code": 1}


def planned(script: str, workdir: str, **changes: Any) -> tuple[str, str, SyncPlan | None]:
    job = JobSpec(framework="torchrun", script=script, sync="/home/me/work", **changes)
    plan = make_plan(job, APART, workdir=workdir)
    assert plan.script in plan.command.argv
    return plan.script, plan.workdir, plan.sync


@pytest.mark.parametrize(
    ("script", "workdir", "wanted"),
    [
        ("train.py", "/home/me/work", ("train.py", "/home/me/work", "")),
        ("/home/me/work/a/train.py", "/home/me/work", ("a/train.py", "/home/me/work", "")),
        ("../b/train.py", "/home/me/work/a", ("../b/train.py", "/home/me/work/a", "a")),
        ("work/a/train.py", "/home/me", ("a/train.py", "/home/me/work", "")),
        ("/home/me/work/train.py", "/tmp", ("train.py", "/home/me/work", "")),
    ],
)
def test_a_job_starts_in_the_copy_where_it_was_submitted(
    script: str, workdir: str, wanted: tuple[str, str, str]
) -> None:
    found, here, sync = planned(script, workdir)
    assert sync is not None
    assert (found, here, sync.workdir) == wanted
    assert (sync.folder, sync.limit_mib) == ("/home/me/work", 500)


def test_what_no_copy_can_be_made_of_is_refused() -> None:
    with pytest.raises(UserError, match=r"script /home/me/train\.py is not in /home/me/work"):
        planned("../train.py", "/home/me/work")
    with pytest.raises(UserError, match=r"script /home/me/workshop/x\.py is not in"):
        planned("/home/me/workshop/x.py", "/tmp")
    with pytest.raises(UserError, match="--sync-limit 0: must be at least 1 MiB"):
        planned("x.py", "/home/me/work", sync_limit_mib=0)
    with pytest.raises(UserError, match="not into an image"):
        planned("x.py", "/home/me/work", image="i", container=ContainerRuntime.DOCKER)
    shared = dataclasses.replace(APART, shared_filesystem=True)
    job = JobSpec(framework="torchrun", script="x.py", sync="/w")
    with pytest.raises(UserError, match="the nodes of cluster apart see your folder as it is"):
        make_plan(job, shared, workdir="/w")


def test_one_hint_for_all_nodes_that_are_busy() -> None:
    taken = SlotsBusy("1 slot wanted, 0 of 1 free")
    both = {"n1": taken, "n2": taken}
    one = dataclasses.replace(layout(), names=("n1",))
    error = refused(both, one)
    assert isinstance(error, NodesBusy)
    assert str(error).count("hint: ") == 1
    assert str(error).endswith("(clusterkit cancel JOB), or leave the nodes out: --exclude n[1-2]")
    assert str(refused(both, layout())).endswith("(clusterkit cancel JOB)")  # none are left
    held = {
        node: SlotsBusy(f"1 slot wanted, 0 of 1 free: slot 0 held by {job} of me since now")
        for node, job in (
            ("n1", "bert-20261121-101500-4f06f8"),
            ("n2", "gpt-20261121-101500-aaaaaa"),
        )
    }
    assert "behind such a job (--after JOB:any)" in str(refused(held, one))
    del held["n2"]
    job = "bert-20261121-101500-4f06f8"
    wait = f"behind that job (--after {job}:any), or end that (clusterkit cancel {job})"
    assert wait in str(refused(held, one))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "job-20261121-120000-abcdef")
    for folder in (made.agents, made.ends, made.nodes, made.failures, made.logs):
        folder.mkdir(parents=True)
    return made


def layout(*, attempt: int = 0) -> SshLayout:
    return SshLayout(
        job_id="ssh-abcdef",
        attempt=attempt,
        names=("n1", "n2", "n3"),
        slots=(1, 1, 1),
        tasks=3,
        ports=(20000, 29999),
        token="t",
        command=(sys.executable,),
        logs="/",
        cluster=dataclasses.replace(APART, venv=str(Path(sys.prefix))),
    )


def failed(rank: int, code: int, **more: Any) -> NodeResult:
    name = f"n{rank + 1}"
    return NodeResult(
        node_rank=rank, node=name, exit_code=code, started_at=1.0, ended_at=9.0 - rank, **more
    )


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({0: failed(2, 1), 1: failed(1, 1)}, "n3"),  # the first node heard of all
        ({1: failed(1, 1)}, "n2"),
        ({0: failed(2, 1, fault="Xid 79")}, "n3"),  # which only n3 can know
        ({0: failed(0, 1), 1: failed(1, 137), 2: failed(2, 1)}, "n2"),  # a killed one breaks others
        ({0: failed(0, 255, lost="no longer answers"), 2: failed(0, 255, lost="x")}, "n1"),
    ],
)
def test_the_first_failure_is_chosen_from_what_all_nodes_tell(
    run: RunFolder, told: dict[int, NodeResult], wanted: str
) -> None:
    for rank, result in told.items():
        files.write_json(run.failures / f"told-{rank}-0.json", files.plain(result))
    decide_first_failure(run, layout())
    first = node_results.first_failure(run, 0)
    assert first is not None
    assert (first.node, first.fault) == (wanted, None)
    assert node_results.read_failures(run) == (first,)


@pytest.fixture
def there(tmp_path: Path, run: RunFolder) -> Iterator[tuple[SessionHere, Path]]:
    session = SessionHere(tmp_path / "home")
    folder = session.home / ".clusterkit" / "runs" / run.run_id
    for name in ("keepers", "ends", "nodes", "logs", "failures", "results/deep", "submitit"):
        (folder / name).mkdir(parents=True)
    yield session, folder
    session.leave()


def bring(
    there: tuple[SessionHere, Path],
    run: RunFolder,
    progress: Progress,
    *,
    gone: bool = False,
    node: str = "n2",
    writers: dict[str, str] | None = None,
    attempt: int = 0,
) -> None:
    now = dataclasses.replace(layout(attempt=attempt), names=("n1", node, "n3"))
    brought = NodeFiles(run, now, 1, progress, {} if writers is None else writers)
    try:
        brought.bring(there[0], gone=gone)
    finally:
        there[0].leave()


def test_a_node_that_comes_back_to_a_rank_writes_behind_its_spare(
    there: tuple[SessionHere, Path], run: RunFolder
) -> None:
    of_first, of_spare = Progress(), Progress()
    writers: dict[str, str] = {}
    turns = (
        ("n2", of_first, (b"a", b"ab")),
        ("n4", of_spare, (b"c", b"cd")),
        ("n2", of_first, (b"abe", b"abef")),
    )
    for attempt, (node, memo, texts) in enumerate(turns):
        for text in texts:
            (there[1] / "logs" / "node-1.log").write_bytes(text)
            bring(there, run, memo, attempt=attempt, node=node, writers=writers)
    assert run.log(1).read_bytes() == b"abcdef"


def test_only_what_is_new_is_brought_and_the_last_word_last(
    there: tuple[SessionHere, Path], run: RunFolder
) -> None:
    _, folder = there
    memo = Progress()
    (folder / "keepers" / "1.json").write_text(json.dumps(AGENT))
    (folder / "logs" / "node-1.log").write_bytes(b"one\n")
    (folder / "results" / "deep" / "half").write_text("half")
    bring(there, run, memo)
    assert [agent.pid for agent in read_agents(run)] == [77]
    assert run.log(1).read_bytes() == b"one\n"
    assert not run.results.exists()
    with (folder / "logs" / "node-1.log").open("ab") as log:
        log.write(b"\xfftwo")
    (folder / "ends" / "1.json").write_text(json.dumps(END))
    script = folder / "results" / "deep" / "run.sh"
    script.write_text("")
    script.chmod(0o755)
    bring(there, run, memo)
    assert run.log(1).read_bytes() == b"one\n\xfftwo"
    assert (run.results / "node-1" / "deep" / "half").read_text() == "half"
    assert (run.results / "node-1" / "deep" / "run.sh").stat().st_mode & 0o777 == 0o700
    assert run.end(1).exists()
    assert memo.over == 0


def test_of_a_keeper_that_was_killed_the_results_come_back_too(
    there: tuple[SessionHere, Path], run: RunFolder
) -> None:
    (there[1] / "results" / "kept").write_text("kept")
    bring(there, run, Progress(), gone=True)
    assert (run.results / "node-1" / "kept").read_text() == "kept"
    assert not run.end(1).exists()


def test_a_node_that_takes_over_a_rank_goes_on_with_its_log(
    there: tuple[SessionHere, Path], run: RunFolder
) -> None:
    _, folder = there
    run.log(1).write_bytes(b"of the node before\n")
    (folder / "logs" / "node-1.log").write_bytes(b"attempt 1\n")
    (folder / "ends" / "1.json").write_text(json.dumps(END))  # not of this attempt
    memo = Progress()
    for _ in range(2):
        bring(there, run, memo, attempt=1)
        assert run.log(1).read_bytes() == b"of the node before\nattempt 1\n"
    assert not run.end(1).exists()


@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        (failed(2, 0), 0),
        (failed(2, 3), 3),
        (failed(2, 143, reason="peer"), 255),  # ended by others, who have given it up
        (None, 255),
    ],
)
def test_nodes_are_believed_of_themselves_first(
    there: tuple[SessionHere, Path], run: RunFolder, own: NodeResult | None, wanted: int
) -> None:
    _, folder = there
    lost = failed(2, 255, lost="no longer answers")
    files.write_json(folder / "nodes" / "node-2-attempt-0.json", files.plain(lost))
    files.write_json(folder / "nodes" / "node-1-attempt-0.json", files.plain(failed(1, 3)))
    if own is not None:
        files.write_json(run.result(2, 0), files.plain(own))
    bring(there, run, Progress())
    settle(run, layout(), out_of_reach={"n3"})
    results = [node_results.read_result(run, rank, 0) for rank in (1, 2)]
    assert [result.exit_code for result in results if result is not None] == [3, wanted]


def test_names_that_lead_elsewhere_are_refused() -> None:
    for name in ("../x", "/etc/passwd", "results/../../x", "", "a\nb", "x" * 256, "\ud800"):
        with pytest.raises(RemoteError, match="n2: answers nonsense: a file of the name"):
            relative(name, node="n2")
    assert str(relative("results/a b", node="n2")) == "results/a b"
