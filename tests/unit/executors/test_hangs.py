"""Jobs that make no progress: told, ended, or started again, with real processes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterkit.core import files, processes, timing
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterKind, JobState, OnHang
from clusterkit.executors.node import nccl_ras
from clusterkit.executors.node.hang import HangWatch
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.run import hangs, node_results, runfolder
from clusterkit.executors.run.hangs import Hang
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.jobs.document import full_document_of, name_of
from clusterkit.jobs.state.load import Job, load_job
from clusterkit.jobs.watch import cancel, wait
from clusterkit.observe.diagnose.job import diagnose_job
from clusterkit.observe.diagnose.rules import load_rules
from clusterkit.observe.diagnose.stacks import in_a_sentence, kept_stacks, odd_one_out
from tests.unit.executors.test_executors_local import Runs, await_line, log, runs, said
from tests.unit.observe.test_nccl_ras import BEHIND, Ras

__all__ = ["runs"]  # a fixture

HELD = Path(__file__).parents[2] / "data" / "flight-recorder" / "missing"
STEPS = "for k in 1 2 3 4 5 6; do echo step $((k + 10 * CK_RESTART_COUNT)); sleep 0.2; done; "
HANGS = STEPS + "sleep 600"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(timing.VARIABLE, "0.2")


def await_hang(run: RunFolder, attempt: int = 0) -> Hang:
    deadline = time.monotonic() + 60
    while (found := hangs.read_hang(run, attempt)) is None:
        assert time.monotonic() < deadline, "it was never noticed"
        time.sleep(0.1)
    return found


def await_until(comes: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not comes():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def await_over(run: RunFolder) -> None:
    await_until(lambda: await_hang(run).over)


RECORDERS = """\
import os, shutil, sys, time
pipes = {rank: os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + f"{rank}.pipe" for rank in range(4)}
for pipe in pipes.values():
    os.mkfifo(pipe)
pipes = {rank: os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) for rank, pipe in pipes.items()}
dumps = os.environ["TORCH_FR_DUMP_TEMP_FILE"]
while True:
    for rank in [rank for rank, pipe in pipes.items() if os.read(pipe, 9)]:
        shutil.copyfile(f"{sys.argv[1]}/rank-{rank}", f"{dumps}{rank}")
    time.sleep(0.1)
"""
"""As four ranks of torch with NCCL do, with dumps of a real run in which one stayed away."""


def notes_of(job: Job) -> tuple[str, ...]:
    notes = diagnose_job(job, load_rules(())).diagnosis.notes
    return tuple(note for note in notes if "share no folder" in note)


def test_a_hang_is_told_and_one_that_ends_is_taken_back(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "recorders.py").write_text(RECORDERS)
    body = (
        "export TORCH_FR_DUMP_TEMP_FILE=$CK_RESULTS/flight-recorder-0-rank-; "
        "export TORCH_NCCL_DEBUG_INFO_PIPE_FILE=$CK_RESULTS/dump-; "
        f"{sys.executable} {tmp_path}/recorders.py {HELD} & {STEPS}"
        "until [[ -e $CK_RESULTS/go ]]; do sleep 0.1; done; echo step 9; sleep 600"
    )
    began = time.monotonic()
    run = runs.start(body, runs.plan(nodes=1, hang_after_s=2))
    found = await_hang(run)
    assert (found.node, found.step, found.by, found.over) == ("node-0", 6, "steps", False)
    assert 2 <= found.silent_s <= time.monotonic() - began
    job = load_job(run)
    assert job.status.state is JobState.RUNNING
    assert (job.status.reason or "").startswith("it hangs: no step for ")
    assert full_document_of(job)["hang"]["step"] == 6
    await_line(run, "clusterkit: it hangs")
    await_until(lambda: hangs.count_stacks(run, 0) == 1)
    cause = diagnose_job(load_job(run), load_rules(())).diagnosis.cause
    assert cause is not None
    assert cause.title == "rank 2 did not come to a collective (all_reduce)"
    assert notes_of(load_job(run)) == ()
    plan = json.loads(run.plan.read_text())
    plan["cluster"]["shared_filesystem"] = False
    run.plan.write_text(json.dumps(plan))
    job = load_job(run)
    ssh = dataclasses.replace(job.submission, kind=ClusterKind.SSH)
    (note,) = notes_of(dataclasses.replace(job, submission=ssh))
    assert f"clusterkit diagnose --stacks {name_of(job)}" in note
    (run.results / "go").touch()
    await_over(run)
    assert load_job(run).status.reason is None
    await_until(lambda: not any(run.results.glob("flight-recorder-*")))
    cancel(run)


def test_a_job_that_hangs_can_be_ended_once_nccl_was_asked_and_people_told(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(timing.VARIABLE, "0.4")  # it waits for people for 5 s otherwise
    ras = Ras(BEHIND.encode())
    body = (
        f"export NCCL_RAS_ADDR=127.0.0.1:{ras.port}; "
        f"[[ $CK_NODE_RANK = 1 ]] && {{ {HANGS}; }}; trap '' TERM; sleep 600"
    )
    tell = f"run sh -c 'sleep 3; echo \"$*\" >>{tmp_path}/told' sh {{event}} {{state}} {{reason}}"
    plan = runs.plan(hang_after_s=2, on_hang=OnHang.CANCEL, on_hang_tell=(tell,))
    run = runs.start(body, plan)
    job = wait(run)
    ras.close()
    assert said(job) == (JobState.FAILED, hangs.HUNG)
    (told,) = (tmp_path / "told").read_text().splitlines()
    assert told.startswith("hang running it hangs: no step for ")
    assert (job.status.reason or "").startswith("it hangs: no step for ")
    assert {result.reason for result in job.results} == {None, "peer"}
    found = diagnose_job(job, load_rules(())).diagnosis
    assert found.cause is not None
    assert found.cause.title == "rank 3 stayed behind in a collective (AllReduce)"
    assert "hung" in {other.rule for other in found.others}


@pytest.mark.parametrize(
    ("body", "attempts", "state"),
    [
        (f"((CK_RESTART_COUNT)) && exit 0; {HANGS}", 2, JobState.SUCCEEDED),
        (HANGS, 3, JobState.FAILED),
        (HANGS.replace("$((k + 10 * CK_RESTART_COUNT))", "$k"), 2, JobState.FAILED),
    ],
    ids=["ends-well", "uses-all-up", "same-step"],
)
def test_a_job_that_hangs_can_start_again_unless_it_does_so_at_the_same_step(
    runs: Runs, body: str, attempts: int, state: JobState
) -> None:
    plan = runs.plan(nodes=1, hang_after_s=2, on_hang=OnHang.RESTART, requeue=2)
    job = wait(runs.start(body, plan))
    assert job.status.state is state, log(job.run)
    assert len(node_results.read_attempts(job.run)) == attempts


def test_a_script_without_steps_that_idles_is_told_by_that_alone(runs: Runs) -> None:
    body = "mkfifo $CK_RESULTS/go; echo begins; read -r <$CK_RESULTS/go; while :; do :; done"
    run = runs.start(body, runs.plan(nodes=1, hang_after_s=2))
    found = await_hang(run)
    assert (found.node_rank, found.by, found.step) == (0, "activity", None)
    assert "judged by that alone, as no step was printed" in found.text
    (run.results / "go").write_text("\n")
    await_over(run)
    cancel(run)


def test_one_that_works_without_a_word_is_not(runs: Runs) -> None:
    run = runs.start("end=$((SECONDS + 10)); while ((SECONDS < end)); do :; done",
                     runs.plan(nodes=1, hang_after_s=2))  # fmt: skip
    assert said(wait(run)) == (JobState.SUCCEEDED, 0)
    assert hangs.read_hang(run, 0) is None


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run-20261127-120000-abcdef")
    files.create_folder(made.path)
    submission = Submission(
        run_id=made.run_id,
        name="toy",
        cluster="c",
        kind=ClusterKind.LOCAL,
        framework="env",
        nodes=2,
        tasks=2,
        submitted_at=0.0,
        hang_after_s=1,
    )
    runfolder.write_submission(made, submission)
    for folder in (made.logs, made.results):
        files.create_folder(folder)
    return made


def hang(rank: int, *, over: bool = False, at: float = 1.0) -> Hang:
    return Hang(
        node=f"n{rank}", node_rank=rank, at=at, silent_s=9, patience_s=8, by="steps", over=over
    )


def test_of_two_who_notice_one_tells(run: RunFolder) -> None:
    assert hangs.note(run, 0, hang(0))
    assert not hangs.note(run, 0, hang(1))
    assert hangs.note(run, 1, hang(1))
    hangs.note_over(run, 0, hang(0))
    assert hangs.note(run, 0, hang(1, at=2.0))
    found = hangs.read_hang(run, 0)
    assert found is not None
    assert (found.node_rank, found.over) == (1, False)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"node": 3}', '{"node": "n1", "silent_s": 1e400}', "\0" * 100]
)
def test_what_is_no_hang_is_none(run: RunFolder, text: str) -> None:
    hangs.hang_file(run, 0).write_text(text)
    assert hangs.read_hang(run, 0) is None


def keep(run: RunFolder, attempt: int, node_rank: int, text: str) -> None:
    hangs.keep(run, attempt, hangs.stacks_file(run, attempt, node_rank), text)


def test_stacks_are_bounded_and_the_oldest_go(run: RunFolder) -> None:
    for attempt in range(4):
        keep(run, attempt, 0, "x" * (1 << 21))
    names = sorted(path.name for path in (run.path / "stacks").iterdir())
    assert names == ["2-node-0.txt", "3-node-0.txt"]
    assert len(hangs.read_kept(hangs.stacks_file(run, 3, 0))) == 1 << 19
    assert hangs.count_stacks(run, 3) == 1


def test_a_full_disk_keeps_no_watch_from_looking(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = Identity(rank=0, name="n1", job_id="1", attempt=0, of=2, among=("n1", "n2"))
    watch = HangWatch(run, me, os.getpid(), since=0)

    def full(*_: object, **__: object) -> None:
        raise UserError("no space left")

    monkeypatch.setattr(hangs, "note", full)
    monkeypatch.setattr(watch, "_patience", Always())
    with pytest.raises(UserError):
        watch.look()
    with pytest.raises(UserError):
        watch.look()  # and so again, until there is room
    monkeypatch.undo()


def test_what_nccl_said_of_one_hang_is_not_told_of_the_next(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = Identity(rank=0, name="n1", job_id="1", attempt=0, of=1, among=("n1",))
    watch = HangWatch(run, me, os.getpid(), since=0)
    answers = ["rank 3 is behind", ""]
    monkeypatch.setattr(nccl_ras, "ask", lambda *_: answers.pop(0))
    monkeypatch.setattr(watch, "_patience", Always())
    watch.look()
    assert hangs.read_kept(hangs.ras_file(run, 0)) == "rank 3 is behind"
    run.log(0).write_text("step 1\nstep 2\n")
    watch.look()
    assert answers == []
    assert not hangs.ras_file(run, 0).exists()


class Always:
    """The patience of a job that hangs."""

    signs, seconds, least_s = 1, 1.0, 1.0

    def hear(self, *_: object) -> None: ...

    def see(self, *_: object, **__: object) -> None: ...

    def must_look(self, _: float) -> bool:
        return False

    def is_over(self, _: float) -> bool:
        return True

    def silent_s(self, _: float) -> float:
        return 2.0


DUMP = """\
@ {pid} {rank} n{node}
Process {pid}: python train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
    {frame}
    <module> (train.py:50)
"""


def dump(rank: int, node: int, frame: str) -> str:
    return DUMP.format(pid=4711 + rank, rank=rank, node=node, frame=frame)


def test_who_waits_for_whom_is_one_sentence(run: RunFolder) -> None:
    waits = "all_reduce (torch/distributed/distributed_c10d.py:2501)"
    loads = "_next_data (torch/utils/data/dataloader.py:1448)"
    worker = "+ 2 pt_data_worker[stopped] n2\n"
    keep(run, 0, 0, dump(0, 1, waits) + dump(1, 1, waits))
    keep(run, 0, 1, dump(2, 2, loads) + worker + "@ 4714 3 n2\n! stopped\n! missing\n")
    told = in_a_sentence(kept_stacks(run, 0, 2))
    assert told == (
        "rank 2 is in the data loader, with pt_data_worker[stopped] below, "
        "rank 3 is stopped (SIGSTOP), ranks 0-1 wait in all_reduce"
    )


def test_the_place_of_a_hang_is_the_one_rank_that_others_wait_for(run: RunFolder) -> None:
    backward = "_engine_run_backward (torch/autograd/graph.py:841)"
    gathers = "all_gather (torch/distributed/distributed_c10d.py:2501)"
    keep(run, 0, 0, dump(0, 1, backward))
    keep(run, 0, 1, dump(1, 2, "stuck (train.py:23)"))
    assert odd_one_out(kept_stacks(run, 0, 2)) == ("n2", 1)
    keep(run, 0, 1, dump(1, 2, gathers))
    assert odd_one_out(kept_stacks(run, 0, 2)) is None
    keep(run, 0, 1, dump(1, 2, "stuck (train.py:23)") + dump(2, 2, "stuck (train.py:23)"))
    assert odd_one_out(kept_stacks(run, 0, 2)) is None


def test_a_rank_that_was_stopped_is_named_without_py_spy(runs: Runs) -> None:
    sleeps = f"RANK=3 exec {sys.executable} -c 'import time; time.sleep(600)'"  # no shim of a shell
    body = f"[[ $CK_NODE_RANK = 1 ]] || {{ {HANGS}; }}; {sleeps}"
    run = runs.start(body, runs.plan(hang_after_s=4))
    await_line(run, "step 2")
    deadline = time.monotonic() + 120
    pids: list[int] = []
    while not pids:
        assert time.monotonic() < deadline
        pids = [
            pid
            for pid in processes.marked(run.marker(1))
            if "600" in str(processes.command_of(pid))
        ]
    os.kill(pids[0], signal.SIGSTOP)
    await_hang(run)
    await_until(lambda: hangs.count_stacks(run, 0) == 2)
    assert "rank 3 is stopped (SIGSTOP)" in in_a_sentence(kept_stacks(run, 0, 2))
    cancel(run)
