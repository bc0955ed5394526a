"""Files of a run folder that are torn, empty, of another kind, or gone: never a wrong state."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterkit.cli.diagnose.report import last_words
from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterKind, Host, JobState, NodeResult
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.ssh import states
from clusterkit.executors.ssh.layout import write_layout
from clusterkit.executors.ssh.start import layout_of
from clusterkit.jobs.document import full_document_of
from clusterkit.jobs.find import find_run, list_runs
from clusterkit.jobs.logs import read_logs
from clusterkit.jobs.state.load import load_job, load_jobs
from clusterkit.transport.probe import Output
from tests.helpers.plans import make_cluster, make_plan

FAKE_SQUEUE = """#!/bin/sh
echo "slurm_load_jobs error: Invalid job id specified" >&2
exit 1
"""


def _replace_values(value: Any, by: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_values(item, by) for key, item in value.items()}
    return by


def _with_values(by: Any) -> Callable[[bytes], bytes]:
    return lambda text: json.dumps(_replace_values(json.loads(text), by)).encode()


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda _: None,
    "empty": lambda _: b"",
    "half": lambda text: text[: len(text) // 2],
    "all but the last byte": lambda text: text.rstrip()[:-1],
    "binary": lambda _: b"\xff\x00\x80\x1f" * 99,
    "a list": lambda _: b"[1, 2]",
    "null": lambda _: b"null",
    "an empty object": lambda _: b"{}",
    "words for values": _with_values("x"),
    "lists for values": _with_values([]),
    "nulls for values": _with_values(None),
    "numbers for values": _with_values(-1),
    "objects for values": _with_values({"a": 1}),
}


@pytest.fixture(autouse=True)
def _nobody_knows_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Let Slurm have forgotten every job, and each node say that no node agent of it is there."""
    programs = tmp_path_factory.mktemp("bin")
    (programs / "squeue").write_text(FAKE_SQUEUE)
    (programs / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    gone = Output(exit_code=0, stdout="gone\n" * 9, stderr="", seconds=0.0)
    monkeypatch.setattr(states, "ask_nodes", lambda _, asked, **__: dict.fromkeys(asked, gone))


def make_run(folder: Path, kind: ClusterKind, code: int, *, kept: bool) -> RunFolder:
    """Return the folder of a job of two nodes that has ended long ago; `kept` in `state.json`."""
    hosts = (Host(name="n0"), Host(name="n1")) if kind is ClusterKind.SSH else ()
    plan = make_plan(make_cluster(folder, kind=kind, hosts=hosts), node_names=("n0", "n1"))
    run = runfolder.create(plan.cluster, "toy", now=time.time() - 1e6)
    files.write_json(run.plan, files.plain(plan))
    submission = Submission(
        run_id=run.run_id, name="toy", cluster="c", kind=kind, framework="torchrun", nodes=2,
        tasks=2, submitted_at=time.time() - 1e6, job_id="7",
    )  # fmt: skip
    runfolder.write_submission(run, submission)
    results = [
        NodeResult(
            node_rank=rank, node=f"n{rank}", exit_code=code, started_at=1.0, ended_at=2.0 + rank,
            reason="peer" if rank == 0 and code else None, rank=rank, tail=("the end",),
        )
        for rank in (1, 0)
    ]  # fmt: skip
    for result in results:
        node_results.write_result(run, result, attempt=0, n_nodes=2)
    if code:
        files.write_json(run.rank_failure(0), {"node": "n1", "rank": 1, "exit_code": code})
    end = {"state": "failed" if code else "succeeded", "exit_code": code}
    if kind is ClusterKind.LOCAL:
        files.write_json(run.controller, {"pid": 1, "start_time": "1", "boot_id": "b", "host": "h"})
        files.write_json(run.ended, {**end, "reason": None})
    if kind is ClusterKind.SSH:
        write_layout(run, layout_of(plan, run))
        for rank in (0, 1):
            about = {"node": f"n{rank}", "attempt": 0, "pid": 7, "start_time": "1", "boot_id": "b"}
            files.create_folder(run.agents)
            files.create_folder(run.ends)
            files.write_json(run.agent(rank), about)
            files.write_json(run.end(rank), {**about, **end, "at": 3.0})
    files.write_text(run.log(0), "out\n")
    if kept:
        assert load_job(run).status.state.final
    return run


def damaged(run: RunFolder, whole: Path) -> Iterator[tuple[str, Path]]:
    """Damage each file of the run in each way, one at a time; yield what was done."""
    for path in sorted(whole.rglob("*.json")):
        name = path.relative_to(whole)
        for damage, inflict in DAMAGES.items():
            shutil.rmtree(run.path)
            shutil.copytree(whole, run.path)
            text = inflict(path.read_bytes())
            if text is None:
                (run.path / name).unlink()
            else:
                (run.path / name).write_bytes(text)
            yield f"{name}: {damage}", run.path / name


@pytest.mark.parametrize("kept", [False, True], ids=["open", "kept"])
@pytest.mark.parametrize("code", [0, 7], ids=["succeeded", "failed"])
@pytest.mark.parametrize("kind", list(ClusterKind))
def test_a_damaged_file_never_gives_a_wrong_state(
    tmp_path: Path, kind: ClusterKind, code: int, kept: bool
) -> None:
    run = make_run(tmp_path / "runs", kind, code, kept=kept)
    shutil.copytree(run.path, whole := tmp_path / "whole")
    right = JobState.FAILED if code else JobState.SUCCEEDED
    assert load_job(run).status.state is right
    for what, path in damaged(run, whole):
        load_jobs(list_runs([run.path.parent]))
        if path == run.submission and runfolder.read_submission(run) is None and not kept:
            with pytest.raises(UserError, match=r"submission\.json|no job 'latest'"):
                load_job(find_run("latest", [run.path.parent]))
            continue
        job = load_job(find_run("latest", [run.path.parent]))
        assert job.status.state in {right, JobState.UNKNOWN}, (what, job.status)
        if job.status.state is JobState.UNKNOWN:
            assert job.status.reason, what
        elif job.status.exit_code != code:
            assert job.status.exit_code is None, what
        json.dumps(files.plain(full_document_of(job)))
        last_words(job)
        assert "out\n" in "".join(read_logs(run)), what


def test_a_running_job_whose_plan_is_damaged_still_runs(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", ClusterKind.LOCAL, 0, kept=False)
    submission = runfolder.read_submission(run)
    assert submission is not None
    young = dataclasses.replace(submission, submitted_at=time.time())
    runfolder.write_submission(run, young)
    for path in (run.ended, run.controller, *run.nodes.iterdir()):
        path.unlink()
    files.write_text(run.plan, "{")
    assert load_job(run).status.state is JobState.PENDING
