"""What follows an attempt of a Slurm job with `--restarts`: decided by its batch script."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterkit.core.model import ClusterKind, NodeResult, RequeueOn
from clusterkit.executors.node import step as steps
from clusterkit.executors.node import watch
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.node.step import Step
from clusterkit.executors.node.supervisor import BLOCKED
from clusterkit.executors.node.watch import BATCH_HOST, batch_decides, blocked
from clusterkit.executors.run import node_results, restarts, runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission

LOST = node_results.lost(1, "n2", "no longer answers")
EACH_OTHER = node_results.lost(0, "n1", "n1 and n2 lost each other", among=("n1", "n2"))
FAULTY = NodeResult(
    node_rank=1, node="n2", exit_code=1, started_at=0, ended_at=1, fault="GPU0 is gone"
)
RAISED = NodeResult(node_rank=1, node="n2", exit_code=1, started_at=0, ended_at=1)
SCONTROL = """#!/bin/sh
echo scontrol "$@" >>{folder}/asked
case $2 in
  node) for node in $(echo "$4" | tr , ' '); do cat {folder}/node-$node; done ;;
  config) echo "SlurmdPort              = 1" ;;
esac
"""
SQUEUE = """#!/bin/sh
case $* in *-s*) echo 7.0; echo 7.batch ;; *) cat {folder}/state ;; esac
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Three nodes, all of which answer, of a job that runs on the first two."""
    folder = tmp_path / "bin"
    folder.mkdir()
    scancel = '#!/bin/sh\necho scancel "$@" >>{folder}/asked\n'
    sinfo = "#!/bin/sh\ncat {folder}/sinfo\n"
    programs = {"scontrol": SCONTROL, "squeue": SQUEUE, "scancel": scancel, "sinfo": sinfo}
    for name, text in programs.items():
        (folder / name).write_text(text.format(folder=tmp_path))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name, value in {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-3]",
        "CK_JOB_ID": "7",
        "CK_RESTART_COUNT": "0",
        "CK_NODES": "n1 n2",
        BATCH_HOST: "n1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CK_NODE_RANK", raising=False)
    (tmp_path / "state").write_text("RUNNING\n")
    (tmp_path / "sinfo").write_text("mixed\n")
    with socket.create_server(("127.0.0.1", 0)) as slurmd:
        port = slurmd.getsockname()[1]
        for name in ("n1", "n2", "n3"):
            record = f"NodeName={name} State=ALLOCATED NodeAddr=127.0.0.1 Port={port}\n"
            (tmp_path / f"node-{name}").write_text(record)
        yield tmp_path


def job(slurm: Path, *failures: NodeResult, **values: object) -> Step:
    run = RunFolder(slurm / "run")
    for folder in (run.failures, run.nodes):
        folder.mkdir(parents=True)
    submission = Submission(
        **{
            "run_id": "run",
            "name": "train",
            "cluster": "c",
            "kind": ClusterKind.SLURM,
            "framework": "torchrun",
            "nodes": 2,
            "tasks": 2,
            "spares": 1,
            "restarts": 1,
            "submitted_at": 0.0,
            "job_id": "7",
            **values,
        }
    )
    runfolder.write_submission(run, submission)
    for failure in failures:
        node_results.note_failure(run, failure, attempt=0, n_nodes=2)
        if failure.lost is None:
            node_results.write_result(run, failure, attempt=0, n_nodes=2)
    return Step(run, submission)


def away(step: Step) -> list[str] | None:
    path = step.run.away("0")
    return path.read_text().split() if step.run.restarted(0).exists() else None


def asked(slurm: Path) -> str:
    path = slurm / "asked"
    return path.read_text() if path.exists() else ""


def silence(slurm: Path, node: str) -> None:
    """Let the slurmd of a node refuse."""
    (slurm / f"node-{node}").write_text(f"NodeName={node} NodeAddr=127.0.0.1 Port=1\n")


def test_a_spare_takes_the_place_of_what_was_lost(slurm: Path) -> None:
    step = job(slurm, LOST)
    step.follow()
    assert away(step) == ["n2"]
    assert "scontrol requeue" not in asked(slurm)


def test_of_two_that_lost_each_other_the_batch_script_goes_on(slurm: Path) -> None:
    step = job(slurm, EACH_OTHER)
    step.follow()
    assert away(step) == ["n2"]


def test_a_node_that_answers_again_is_used_where_there_is_no_other(slurm: Path) -> None:
    silence(slurm, "n3")
    step = job(slurm, LOST)
    step.follow()
    assert away(step) == ["n3"]


def test_a_node_with_a_fault_is_left_out_for_good(slurm: Path) -> None:
    step = job(slurm, FAULTY)
    step.follow()
    assert away(step) == ["n2"]
    assert step.run.left_out.read_text() == "n2\n"


@pytest.mark.parametrize("requeue", [0, 1])
def test_without_enough_nodes_the_queue_is_what_is_left(slurm: Path, requeue: int) -> None:
    for node in ("n2", "n3"):
        silence(slurm, node)
    step = job(slurm, LOST, requeue=requeue)
    step.run.plan.write_text('{"on_end": ["run true"]}')
    step.run.plan.chmod(0o600)
    step.follow()
    assert away(step) is None
    assert ("scontrol requeue 7" in asked(slurm)) is bool(requeue)
    assert step.run.notified.exists() is not bool(requeue)


def test_where_no_restart_is_left_the_queue_follows(slurm: Path) -> None:
    step = job(slurm, LOST, restarts=0, requeue=1)
    step.follow()
    assert away(step) is None
    assert "scontrol requeue 7" in asked(slurm)


@pytest.mark.parametrize(
    "why",
    ["script", "head", "cancelled", "told", "limit", "given back", "scancel", "silent controller"],
)
def test_nothing_follows(slurm: Path, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the script did, the end of the batch script's own node, and what others decided."""
    monkeypatch.setattr(steps, "_PAUSES_S", (0.01,))
    head = node_results.lost(0, "n1", "has lost its network")
    limit = NodeResult(
        node_rank=0, node="n1", exit_code=143, started_at=0, ended_at=1, reason="timeout"
    )
    failures = {"script": (RAISED,), "head": (head,), "limit": (LOST, limit)}.get(why, (LOST,))
    step = job(slurm, *failures, requeue=1)
    if why == "cancelled":
        step.run.cancelled.touch()
    if why == "told":
        step.told = True
    if why == "given back":
        step.run.requeued(0).touch()
    if why == "scancel":
        (slurm / "state").write_text("COMPLETING\n")
    if why == "silent controller":
        (slurm / "state").unlink()
    step.follow()
    assert away(step) is None
    assert "scontrol requeue" not in asked(slurm)


def test_any_failure_is_enough_where_that_was_asked_for(slurm: Path) -> None:
    step = job(slurm, RAISED, requeue_on=RequeueOn.FAILURE)
    step.follow()
    assert away(step) == []


def test_who_is_told_to_end_in_a_pause_takes_the_restart_back(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "pause_s", lambda *_: 1e6)
    step = job(slurm, LOST)
    with blocked(BLOCKED):
        me = threading.get_native_id()
        threading.Timer(0.5, lambda: os.kill(me, signal.SIGTERM)).start()
        step.follow()
    assert away(step) is None


def test_a_step_that_waits_for_a_node_that_has_gone_is_ended(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = job(slurm, LOST)
    node_results.write_result(
        step.run,
        NodeResult(node_rank=0, node="n1", exit_code=255, started_at=0, ended_at=1, reason="peer"),
        attempt=0,
        n_nodes=2,
    )
    with blocked(BLOCKED):
        code = step.run_to_end([sys.executable, "-c", "import time; time.sleep(300)"])
    assert code == 128 + signal.SIGKILL
    assert "scancel 7.0\n" in asked(slurm)


def test_a_signal_reaches_the_step(slurm: Path) -> None:
    step = job(slurm)
    with blocked(BLOCKED):
        me = threading.get_native_id()
        threading.Timer(1.0, lambda: os.kill(me, signal.SIGTERM)).start()
        code = step.run_to_end(["sleep", "300"])
    assert code == 128 + signal.SIGTERM
    assert step.told


@pytest.mark.parametrize(("requeue", "word"), [(0, "scancel 7"), (1, "scontrol requeue 7")])
def test_where_the_batch_script_says_nothing_a_node_takes_over(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, requeue: int, word: str
) -> None:
    monkeypatch.setattr(watch, "_BATCH_S", 0.0)
    run = job(slurm, EACH_OTHER, requeue=requeue).run
    head, second = (
        Identity(job_id="7", attempt=0, rank=k, of=2, name=f"n{k + 1}", among=("n1", "n2"))
        for k in (0, 1)
    )
    watch.take_over(run, head)
    run.restarted(0).touch()
    watch.take_over(run, second)
    assert asked(slurm) == ""
    run.restarted(0).unlink()
    watch.take_over(run, second)
    assert word in asked(slurm)


@pytest.mark.parametrize(("state", "ends"), [("mixed", False), ("mixed*", True), ("down*", True)])
def test_one_takes_over_at_once_where_slurm_misses_the_batch_script_as_well(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, state: str, ends: bool
) -> None:
    run = job(slurm, EACH_OTHER).run
    (slurm / "sinfo").write_text(f"{state}\n")
    me = Identity(job_id="7", attempt=0, rank=1, of=2, name="n2", among=("n1", "n2"))
    naps: list[float] = []

    def decided_meanwhile(seconds: float) -> None:
        """Let the batch script come before a look after two seconds."""
        time.sleep(seconds)
        naps.append(seconds)
        if sum(naps) >= 2:
            run.restarted(0).touch()

    monkeypatch.setattr(watch, "time", SimpleNamespace(**vars(time) | {"sleep": decided_meanwhile}))
    watch.take_over(run, me)
    assert bool(naps) is not ends
    assert sum(naps) <= 4, "it looks every two seconds at most"
    assert ("scancel 7" in asked(slurm)) is ends


def test_workers_leave_it_to_the_batch_script_unless_its_node_is_lost(slurm: Path) -> None:
    step = job(slurm)
    assert batch_decides(step.run)
    assert batch_decides(step.run, lost=LOST)
    assert batch_decides(step.run, lost=EACH_OTHER)
    assert not batch_decides(step.run, lost=node_results.lost(0, "n1", "no longer answers"))
