"""Metrics for the textfile collector, as its own reader understands them."""

from __future__ import annotations

import dataclasses
import json
import stat
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from clusterkit.cli.frame.main import app
from clusterkit.core.errors import UserError
from clusterkit.core.findings import Finding, Verdict
from clusterkit.core.model import ClusterKind, JobState, JobStatus
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.jobs.state.load import Job
from clusterkit.observe import prometheus as metrics
from clusterkit.observe.account import AttemptUsage, Usage, total_of
from clusterkit.preflight.report import Report

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(path: Path) -> Samples:
    families = text_string_to_metric_families(path.read_text())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def of(samples: Samples, name: str, /, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def job(number: int, state: JobState, *, name: str = "train", cluster: str = "a100") -> Job:
    submission = Submission(
        run_id=f"{name}-20261122-101500-{number:06x}",
        name=name,
        cluster=cluster,
        kind=ClusterKind.SLURM,
        framework="torchrun",
        nodes=4,
        tasks=4,
        submitted_at=1000.0 + number,
        job_id=str(number),
    )
    folder = RunFolder(Path("/runs") / submission.run_id)
    return Job(run=folder, submission=submission, status=JobStatus(state=state))


def test_jobs_are_counted_and_those_under_way_named(tmp_path: Path) -> None:
    path = tmp_path / "jobs.prom"
    jobs = (
        job(1, JobState.SUCCEEDED),
        job(2, JobState.SUCCEEDED),
        job(3, JobState.RUNNING, name='odd "name"\\'),
        job(4, JobState.FAILED, cluster="rack"),
    )
    metrics.write_jobs(path, jobs, now=5000.0)
    seen = read(path)
    assert of(seen, "clusterkit_jobs", cluster="a100", state="succeeded") == 2
    assert of(seen, "clusterkit_jobs", cluster="a100", state="failed") == 0
    assert of(seen, "clusterkit_jobs", cluster="rack", state="failed") == 1
    labels = {
        "job_id": "3",
        "job_name": 'odd "name"\\',
        "cluster": "a100",
        "framework": "torchrun",
        "state": "running",
    }
    assert of(seen, "clusterkit_job_nodes", **labels) == 4
    assert of(seen, "clusterkit_job_submitted_timestamp_seconds", **labels) == 1003
    assert sum(name == "clusterkit_job_nodes" for name, _ in seen) == 1
    assert of(seen, "clusterkit_status_timestamp_seconds") == 5000
    assert stat.S_IMODE(path.stat().st_mode) == 0o644  # the exporter is another user


def test_what_jobs_have_cost_is_told_by_cluster(tmp_path: Path) -> None:
    attempt = AttemptUsage(
        attempt=0, nodes=2, slots=16, before_s=60.0, elapsed_s=3600.0, first_step=1, last_step=90,
        recomputed=0, recomputed_s=0.0, busy=None,
    )  # fmt: skip
    again = dataclasses.replace(attempt, attempt=1, recomputed_s=360.0)
    long = 'odd "name"\\' + "x" * 1000
    totals = [
        total_of("a100", [Usage(attempts=(attempt, again), price=2.0, hangs=1)]),
        total_of(long, [Usage(attempts=(), price=None)]),
    ]
    metrics.write_account(tmp_path / "a.prom", totals, since=1.0, now=2.0)
    seen = read(tmp_path / "a.prom")
    figures = {
        name: of(seen, f"clusterkit_account_{name}", cluster="a100")
        for name in ("jobs", "gpu_hours", "gpu_hours_lost", "goodput_ratio", "restarts", "hangs")
    }
    goodput = pytest.approx(6840 / 7320)
    assert list(figures.values()) == [1, 32, pytest.approx(1.6), goodput, 1, 1]
    assert of(seen, "clusterkit_account_cost", cluster="a100") == 64
    parts = {
        part: of(seen, "clusterkit_account_seconds", cluster="a100", part=part)
        for part in ("training", "queue", "restart", "recomputed")
    }
    assert list(parts.values()) == [6840, 60, 60, 360]
    assert of(seen, "clusterkit_account_since_timestamp_seconds") == 1
    assert of(seen, "clusterkit_account_timestamp_seconds") == 2
    other = long[:199] + "…"
    assert of(seen, "clusterkit_account_jobs", cluster=other) == 1, "cut, and escaped"
    assert of(seen, "clusterkit_account_goodput_ratio", cluster=other) is None
    assert of(seen, "clusterkit_account_cost", cluster=other) is None


def test_a_job_that_hangs_is_told_until_it_goes_on(tmp_path: Path) -> None:
    one = dataclasses.replace(job(5, JobState.RUNNING), run=RunFolder(tmp_path))
    hang = {"node": "n1", "node_rank": 0, "at": 1.0, "silent_s": 90.0, "patience_s": 60.0}
    hang |= {"by": "steps", "step": 7}
    path = tmp_path / "hang-0.json"
    seen = []
    for over in (None, False, True):
        if over is not None:
            path.write_text(json.dumps({**hang, "over": over}))
        metrics.write_jobs(tmp_path / "j.prom", [one], now=1.0)
        told = read(tmp_path / "j.prom")
        seen += [value for (name, _), value in told.items() if name == "clusterkit_job_hanging"]
    assert seen == [0, 1, 0]


def test_a_preflight_tells_of_nodes_and_of_what_did_not_pass(tmp_path: Path) -> None:
    path = tmp_path / "preflight.prom"

    def finding(verdict: Verdict, *nodes: str) -> Finding:
        return Finding(
            id="GPU014", check="gpu-temperature", verdict=verdict, nodes=nodes, summary=""
        )

    report = Report(
        nodes=("n1", "n2", "n3"),
        unasked=("n3",),
        findings=(finding(Verdict.PASS, "n1"), finding(Verdict.FAIL, "n2"), finding(Verdict.WARN)),
        seconds=1.5,
    )
    metrics.write_preflight(path, report, now=7.0)
    seen = read(path)
    usable = {n: of(seen, "clusterkit_preflight_node_usable", node=n) for n in report.nodes}
    assert usable == {"n1": 1, "n2": 0, "n3": None}
    told = {"id": "GPU014", "check": "gpu-temperature"}
    assert of(seen, "clusterkit_preflight_finding", node="n2", verdict="fail", **told) == 1
    assert of(seen, "clusterkit_preflight_finding", node="", verdict="warn", **told) == 1
    assert sum(name == "clusterkit_preflight_finding" for name, _ in seen) == 2
    assert of(seen, "clusterkit_preflight_findings", verdict="pass") == 1
    assert of(seen, "clusterkit_preflight_duration_seconds") == 1.5


def test_the_verbs_write_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusterkit.yaml").write_text("clusters: {here: {kind: local, run_dir: runs}}\n")
    run = CliRunner().invoke
    words = ["preflight", "--cluster", "here", "--select", "HOST", "--prometheus", "p.prom"]
    assert run(app, words).exit_code in {0, 1}
    assert ("clusterkit_preflight_node_usable", frozenset({("node", "localhost")})) in read(
        tmp_path / "p.prom"
    )
    done = run(app, ["status", "--prometheus", "s.prom"])
    assert done.exit_code == 0, done.output
    assert of(read(tmp_path / "s.prom"), "clusterkit_status_timestamp_seconds")
    assert run(app, ["report", "--prometheus", "r.prom"]).exit_code == 0
    assert of(read(tmp_path / "r.prom"), "clusterkit_account_timestamp_seconds")


@pytest.mark.parametrize(
    ("path", "said"), [("a.txt", "*.prom"), ("nowhere/a.prom", "cannot write"), (".", "*.prom")]
)
def test_a_place_that_will_not_do_is_refused_beforehand(
    tmp_path: Path, path: str, said: str
) -> None:
    with pytest.raises(UserError) as caught:
        metrics.require_metrics(tmp_path / path)
    assert said in str(caught.value)


def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UserError) as caught:
        metrics.require_metrics(tmp_path / "a.prom")
    assert "pip install prometheus-client" in str(caught.value.problems[0].hint)
