"""What the output of a node says it failed of: whom it blames, and how often that is believed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import files
from clusterkit.core.model import ClusterKind, JobState, NodeResult, RequeueOn
from clusterkit.executors.node import health
from clusterkit.executors.node.health import drain, with_cause
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.attempts import is_the_same
from clusterkit.executors.run.restarts import may_start_again
from clusterkit.executors.run.runfolder import RunFolder, Submission

NAMES = ("n1", "n2")
FAILED = NodeResult(node_rank=0, node="n1", exit_code=1, started_at=0, ended_at=1)
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python, GPU has fallen off the bus."

PORT = "{}:90:97 [0] net_ib.cc:94 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr(health, "_READING_S", 300.0)  # a busy machine may be slow to read
    run = RunFolder(tmp_path / "run")
    for folder in (run.nodes, run.failures, run.logs):
        folder.mkdir(parents=True)
    return run


def told(run: RunFolder, output: str, *, since: int = 0, shared: bool = False) -> NodeResult:
    run.log(0).write_text(output)
    me = Identity(job_id="7", attempt=0, rank=0, of=2, name="n1", among=NAMES)
    return with_cause(run, me, FAILED, since=since, shared=shared)


@pytest.mark.parametrize(
    ("output", "rule", "blamed"),
    [
        (f"step 40 loss 1.5\n{ECC}\n", "gpu-ecc", True),
        (f"step 40 loss 1.5\n{XID}\n", "gpu-xid", True),
        ("step 40 loss 1.5\nValueError: the loss is NaN\n", "nan-loss-refused", False),
        ("step 40 loss 1.5\ntorch.OutOfMemoryError: CUDA out of memory.\n", None, False),
        ("step 40\nRuntimeError: NCCL error: ncclRemoteError: A call failed\n", None, False),
        (f"{ECC}\nstep 38\nstep 39\nstep 40\n", "gpu-ecc", False),
    ],
)
def test_a_fault_of_hardware_is_told_from_one_of_the_script(
    run: RunFolder, output: str, rule: str | None, blamed: bool
) -> None:
    """One after which the ranks went on was none, and another rank's death is not this node's."""
    found = told(run, output)
    assert bool(found.fault) is blamed
    assert found.step == 40
    assert rule in {None, found.rule}


def test_only_the_output_of_this_attempt_counts(run: RunFolder) -> None:
    before = f"{ECC}\n"
    found = told(run, f"{before}step 2\nValueError: no such column\n", since=len(before))
    assert (found.fault, found.step) == (None, 2)


def test_of_output_that_ranks_of_all_nodes_print_nobody_is_blamed(run: RunFolder) -> None:
    assert told(run, f"{ECC}\n", shared=True).fault is None
    assert told(run, PORT.format("n2")).fault is None
    assert told(run, PORT.format("n1"), shared=True).fault is not None


@pytest.mark.parametrize("program", ["exit 3", "sleep 300", "echo nonsense"])
def test_a_node_whose_output_cannot_be_read_is_not_blamed(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """And says so, in bounded time."""
    monkeypatch.setattr(health, "_DIAGNOSE", ("sh", "-c", program))
    monkeypatch.setattr(health, "_READING_S", 0.5)
    assert told(run, f"{ECC}\n") == FAILED
    assert "the output could not be read" in run.log(0).read_text()


def test_a_huge_log_is_read_at_its_end_alone(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "given"
    monkeypatch.setattr(health, "_DIAGNOSE", ("sh", "-c", f"cat >{given}; echo {{}}"))
    assert told(run, f"{ECC}\n" + ("y" * 79 + "\n") * 200_000).rule is None
    assert set(given.read_text()) == {"y", "\n"}
    assert given.stat().st_size <= 4 << 20


def blamed(rule: str | None, step: int | None, **values: Any) -> NodeResult:
    fault = "its output says: a GPU has a fault"
    found = dataclasses.replace(FAILED, rule=rule, step=step, fault=fault)
    return dataclasses.replace(found, **values)


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        (blamed("gpu-xid", 40), blamed("gpu-xid", 40), True),
        (blamed("gpu-xid", None), blamed("gpu-xid", None), True),
        (blamed("gpu-xid", 40), blamed("gpu-xid", 90), False),
        (blamed("gpu-xid", 40), blamed("gpu-ecc", 40), False),
        (FAILED, FAILED, True),
        (FAILED, dataclasses.replace(FAILED, exit_code=2), False),
        (FAILED, dataclasses.replace(FAILED, reason="timeout"), False),
        (node_results.lost(0, "n1", "has gone"), node_results.lost(0, "n1", "has gone"), False),
    ],
)
def test_the_same_failure_is_one_of_the_same_cause_at_the_same_step(
    before: NodeResult, now: NodeResult, same: bool
) -> None:
    assert is_the_same([now], [before]) is same


@pytest.mark.parametrize(
    ("second", "again"),
    [
        (blamed("gpu-xid", 90, node="n2"), True),
        (blamed("gpu-xid", 40, node="n2"), False),
        (blamed(None, 40, node="n2", fault="GPU011 Xid 79"), True),
    ],
)
def test_output_that_blames_another_node_at_the_same_step_is_not_believed(
    run: RunFolder, second: NodeResult, again: bool
) -> None:
    """The step is what any node tells; what a node's own checks find is believed always."""
    job = Submission(
        run_id="toy-20261121-101500-4f06f8", name="toy", cluster="rack", kind=ClusterKind.SSH,
        framework="torchrun", nodes=2, tasks=2, submitted_at=0.0, requeue=5, spares=5,
    )  # fmt: skip
    runfolder.write_submission(run, job)
    node_results.write_result(run, blamed("gpu-xid", 40), attempt=0, n_nodes=2)
    assert may_start_again(run, job, JobState.FAILED, 0)
    silent = dataclasses.replace(second, node_rank=1, step=None)
    other = dataclasses.replace(FAILED, reason="peer", step=second.step)
    for result in (silent, other):
        node_results.write_result(run, result, attempt=1, n_nodes=2)
    assert may_start_again(run, job, JobState.FAILED, 1) is again
    in_vain = None if again else "as in the attempt before, at step 40"
    assert node_results.why_in_vain(run, 1) == in_vain


@pytest.mark.parametrize(("requeue_on", "again"), [("hardware", False), ("failure", True)])
def test_a_command_whose_failure_is_all_that_its_node_wrote_may_start_again(
    run: RunFolder, requeue_on: str, again: bool
) -> None:
    """It was killed while it read its log, as were the others, because one had failed."""
    job = Submission(
        run_id="toy-20261121-101500-4f06f8", name="toy", cluster="rack", kind=ClusterKind.SSH,
        framework="torchrun", nodes=2, tasks=2, submitted_at=0.0, requeue=1,
        requeue_on=RequeueOn(requeue_on),
    )  # fmt: skip
    runfolder.write_submission(run, job)
    node_results.note_failure(run, FAILED, attempt=0, n_nodes=2)
    killed = dataclasses.replace(FAILED, exit_code=137, reason="peer")
    for rank in range(2):
        result = dataclasses.replace(killed, node_rank=rank)
        node_results.write_result(run, result, attempt=0, n_nodes=2)
    assert may_start_again(run, job, JobState.FAILED, 0) is again


@pytest.mark.parametrize(
    ("program", "ended"),
    [
        ("exit 0", "drained"),
        ("echo not allowed >&2; exit 7", "drain_command failed: not allowed"),
        ("exit 7", "drain_command failed: exit code 7"),
        ("sleep 300", "drain_command failed: sh: no answer in 15 s"),
    ],
)
def test_the_command_of_the_site_takes_a_node_out_without_a_shell(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, ended: str
) -> None:
    """Its failure is told, and nothing else fails of it."""
    monkeypatch.setattr(health, "_DRAIN_S", 15.0)
    script = f'printf "%s\\n" "$@" >{tmp_path}/asked; {program}'
    words = ("sh", "-c", script, "sh", "node={node}", "why={reason}")
    files.write_json(run.plan, {"cluster": {"drain_command": words}})
    me = Identity(job_id="7", attempt=0, rank=0, of=2, name="n1", among=NAMES)
    assert drain(run, me, "GPU011 $(touch x); {node}\n`reboot`\x1b[31m") == ended
    said = (tmp_path / "asked").read_text()
    assert said == "node=n1\nwhy=GPU011 $(touch x); {node} `reboot`\n"
    assert ended in run.log(0).read_text()


def test_without_a_command_nothing_is_run(run: RunFolder) -> None:
    me = Identity(job_id="7", attempt=0, rank=0, of=2, name="n1", among=NAMES)
    assert drain(run, me, "GPU011 Xid 79") is None
    files.write_json(run.plan, {"cluster": {"drain_command": ["no-such-program", "{node}"]}})
    assert drain(run, me, "Xid 79") == ("drain_command failed: no-such-program: command not found")
