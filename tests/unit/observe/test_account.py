"""What jobs have cost, by what their run folders hold."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import files
from clusterkit.core.model import ClusterKind, ClusterSpec, JobState, JobStatus, NodeResult
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.jobs.state.load import Job
from clusterkit.observe.account import total_of, usage_of
from tests.helpers.command_line import typed_in

NOW = time.time() - 7200
JOB = Submission(
    run_id="toy-20261127-101500-4f06f8", name="toy", cluster="a100", kind=ClusterKind.SLURM,
    framework="torchrun", nodes=2, tasks=2, submitted_at=NOW, requeue=2, spares=1, job_id="4711",
)  # fmt: skip
CLUSTER = ClusterSpec(name="a100", kind=ClusterKind.SLURM, price=2.0)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    run = RunFolder(tmp_path / JOB.run_id)
    for folder in (run.nodes, run.failures, run.logs, run.submitit):
        folder.mkdir(parents=True)
    runfolder.write_submission(run, JOB)
    files.write_json(run.plan, {"slots": [8, 8], "cluster": {}})
    status = JobStatus(state=JobState.SUCCEEDED, exit_code=0)
    runfolder.write_state(run, JOB, status)
    return Job(run=run, submission=JOB, status=status)


def ended(job: Job, attempt: int, began: float, took: float, **more: Any) -> None:
    for rank in range(2):
        result = NodeResult(
            node_rank=rank,
            node=f"n{rank + 1}",
            exit_code=more.get("code", 0),
            started_at=NOW + began,
            ended_at=NOW + began + took,
            step=more.get("step"),
        )
        node_results.replace_result(job.run, result, attempt=attempt, n_nodes=2)


def trained(job: Job, *runs: range) -> None:
    text = ""
    for attempt, steps in enumerate(runs):
        text += f"--- clusterkit: restart {attempt} on n1, 2026-11-27\n" if attempt else ""
        text += "".join(f"step {step} loss 1.5\n" for step in steps)
    job.run.log(0).write_text(text)


def test_what_was_held_waited_for_and_computed_again_is_counted(job: Job) -> None:
    ended(job, 0, 60, 1000, code=1, step=100)
    ended(job, 1, 1160, 800)
    trained(job, range(1, 101), range(81, 161))
    usage = usage_of(job, CLUSTER)
    assert [one.slots for one in usage.attempts] == [24, 24]
    assert usage.gpu_hours == pytest.approx(24 * 1800 / 3600)
    assert usage.queue_s == pytest.approx(60)
    assert usage.restart_s == pytest.approx(100)
    assert [one.recomputed for one in usage.attempts] == [0, 20]
    assert usage.recomputed_s == pytest.approx(200)
    assert usage.training_s == pytest.approx(1600)
    assert usage.goodput == pytest.approx(1600 / 1960)
    assert usage.cost == pytest.approx(24.0)


def test_how_busy_gpus_were_is_told_where_nodes_kept_it(job: Job) -> None:
    ended(job, 0, 60, 1000)
    assert usage_of(job).busy is None
    job.run.vitals.mkdir()
    lines = ['{"at": 5, "busy": {"0": 80, "1": 100}}', '{"busy": {"0": -5, "1": "x"}}', "[", "torn"]
    job.run.samples(1, 0).write_text("\n".join(lines))
    assert usage_of(job).busy == pytest.approx(0.9)


def test_without_steps_nothing_is_said_to_be_computed_again(job: Job) -> None:
    ended(job, 0, 60, 1000, code=1)
    ended(job, 1, 1160, 800)
    usage = usage_of(job)
    assert usage.recomputed_s == 0
    assert usage.training_s == pytest.approx(1800)
    assert (usage.price, usage.cost) == (None, None)


def test_steps_begun_anew_are_all_computed_again(job: Job) -> None:
    ended(job, 0, 0, 100, code=1)
    ended(job, 1, 100, 50, code=1)
    ended(job, 2, 150, 200)
    trained(job, range(1, 41), range(1, 21), range(1, 81))
    usage = usage_of(job)
    assert [one.recomputed for one in usage.attempts] == [0, 20, 40]
    assert usage.recomputed_s == pytest.approx(50 + 100)


def test_of_a_job_that_runs_nothing_is_known_yet(job: Job) -> None:
    usage = usage_of(job)
    assert (usage.attempts, usage.gpu_hours, usage.goodput) == ((), 0, None)


def test_clocks_that_jump_and_files_that_lie_make_no_time(job: Job) -> None:
    ended(job, 0, -500, -300)
    files.write_json(job.run.plan, {"slots": ["x", -3], "cluster": {"price": -1}})
    usage = usage_of(job)
    assert (usage.gpu_hours, usage.queue_s, usage.goodput, usage.price) == (0, 0, None, None)
    job.run.plan.write_text("[")
    job.run.log(0).write_text("--- clusterkit: restart 99999999999999999999 on n1, x\nstep 1\n")
    ended(job, 1, 10, 3600)
    assert usage_of(job).gpu_hours == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("then", "now", "price"),
    [
        ({"price": 3.0}, None, 3.0),
        ({"price": 3.0}, CLUSTER, 2.0),
        ({"instance_type": "p5.48xlarge"}, None, 55.04 / 8),
        ({"instance_type": "abacus"}, dataclasses.replace(CLUSTER, price=None), None),
    ],
)
def test_a_price_is_that_of_now_of_then_or_of_the_instances(
    job: Job, then: dict[str, Any], now: ClusterSpec | None, price: float | None
) -> None:
    files.write_json(job.run.plan, {"slots": [8, 8], "cluster": then})
    assert usage_of(job, now).price == (None if price is None else pytest.approx(price))


def test_jobs_are_summed(job: Job) -> None:
    ended(job, 0, 60, 3600)
    total = total_of("a100", [usage_of(job, CLUSTER), usage_of(job)])
    assert (total.jobs, total.unpriced) == (2, 1)
    assert [total.gpu_hours, total.cost] == pytest.approx([48, 48])
    assert total.goodput == pytest.approx(3600 / 3660)


def test_report_and_usage_tell_it(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "clusterkit.yaml"
    config.write_text(
        f"clusters: {{a100: {{kind: slurm, price: 2.5, partition: p, run_dir: {tmp_path}}}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    ended(job, 0, 60, 1000, code=1, step=100)
    ended(job, 1, 1160, 800)
    trained(job, range(1, 101), range(81, 161))
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    said = typed_in(tmp_path, "report", "--since", "1d", **home).stdout
    assert said.splitlines() == [
        "CLUSTER  JOBS  GPU-H   TRAINING     QUEUE  RESTARTS     AGAIN  GOODPUT   COST",
        "a100        1   12.0  26:40 min  1:00 min  1:40 min  3:20 min      82%  30.00",
    ]
    told = json.loads(typed_in(tmp_path, "report", "--json", **home).stdout)
    assert told["all"]["gpu_hours"] == pytest.approx(12)
    assert [one["name"] for one in told["clusters"]] == ["a100"]
    shown = typed_in(tmp_path, "status", "4711", "--usage", **home).stdout
    assert "  usage      12.00 GPU-hours, 30.00 at 2.5 an hour\n" in shown
    assert "  lost       queue 1:00 min, restarts 1:40 min, 20 steps repeated 3:20 min\n" in shown
    assert "    attempt 2: 24 GPUs, ran 13:20 min after 1:40 min waiting, steps 81-160\n" in shown
    usage = json.loads(typed_in(tmp_path, "status", "4711", "--usage", "--json", **home).stdout)
    assert usage["usage"]["attempts"][1]["recomputed"] == 20
    wrong = typed_in(tmp_path, "report", "--since", "yesterday", **home)
    assert wrong.returncode == 2
    none = typed_in(tmp_path, "status", "--usage", **home)
    assert none.returncode == 2
