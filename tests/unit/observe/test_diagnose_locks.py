"""A lock that a killed build of a torch extension left, and the job that waited for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterkit.core import files
from clusterkit.core.model import JobState
from clusterkit.jobs.state.load import load_job
from clusterkit.observe.diagnose.job import diagnose_job
from clusterkit.observe.diagnose.rules import own_rules
from tests.unit.observe.test_diagnose_verb import job

BUILDS = "[2026-11-22 13:00:00] [INFO] DeepSpeed info: version=0.19.8\n"
SUBMITTED = 1.0


@pytest.mark.parametrize(
    ("state", "log", "left_at", "rule"),
    [
        (JobState.TIMEOUT, BUILDS, 0.5, "extension-lock"),
        (JobState.CANCELLED, BUILDS, 0.5, "extension-lock"),
        (JobState.TIMEOUT, BUILDS, 2.0, "time-limit"),
        (JobState.TIMEOUT, f"{BUILDS}step 1 loss 2.0\n", 0.5, "time-limit"),
        (JobState.TIMEOUT, "hello\n", 0.5, "time-limit"),
        (JobState.TIMEOUT, f"{BUILDS}OSError: [Errno 28] No space left on device\n", 0.5,
         "disk-full"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by_variable", [True, False])
def test_a_lock_from_before_the_job_is_told_where_it_took_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, state: JobState, log: str, left_at: float,
    rule: str, by_variable: bool,
) -> None:  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    run = job(tmp_path, state=state, exit_code=137)
    root = tmp_path / ".cache" / "torch_extensions" / "py311_cu121"
    if by_variable:
        root = tmp_path / "ext"
        plan = files.read_json(run.plan) or {}
        files.write_json(run.plan, {**plan, "env": {"TORCH_EXTENSIONS_DIR": str(root)}})
    lock = root / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (left_at, left_at))
    run.log(0).write_text(log)
    cause = diagnose_job(load_job(run), own_rules()).diagnosis.cause
    assert cause is not None
    assert cause.rule == rule
    if rule == "extension-lock":
        assert f"`rm {lock}`" in cause.do
