"""Jobs on the practice cluster that fail for real: `diagnose` names cause, node and rank of each.

All are submitted before the first is looked at, so that they run side by side. Recordings of many
more are read in tests/unit/observe/test_diagnose_recorded.py, which says what is tested where.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers.desk import Desk
from tests.helpers.failure_records import record
from tests.helpers.lab_failures import FAILURES, LIVE, sick_host
from tests.lab.lab import Lab
from tests.unit.executors.test_worker import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A job that has failed, and what `diagnose JOB --json` says of it."""

    job: dict[str, Any]
    found: dict[str, Any]

    def __str__(self) -> str:
        logs = Path(self.job["run_dir"], "logs").glob("*.log")
        return "\n".join((json.dumps(self.found, indent=1), *(log.read_text() for log in logs)))


@pytest.fixture(scope="module")
def failed(lab: Lab) -> dict[str, Failed]:
    """Let all the jobs fail, and cancel one more."""
    desk = Desk.of(lab, "diagnose")
    writes = os.environ.get("CLUSTERKIT_GOLDEN") == "write"
    names = tuple(FAILURES) if writes else LIVE
    with sick_host(desk), ThreadPoolExecutor(4) as pool:
        cancelled = submit(desk, desk.write("sleep.py", "import time\ntime.sleep(300)\n"))
        started = list(pool.map(lambda name: submitted(desk, name), names))
        desk.clusterkit("cancel", cancelled["job_id"])
        ended = list(pool.map(lambda job: diagnosed(desk, job), (*started, cancelled)))
    told = dict(zip((*names, "cancel"), ended, strict=True))
    if writes:
        for name, job in told.items():
            record(name, Path(job.job["run_dir"]))
    return told


def submitted(desk: Desk, name: str) -> dict[str, Any]:
    failure = FAILURES[name]
    script = desk.write(f"fails-{name}.py", failure.script)
    words = ("--framework", failure.framework, "--nodes", str(failure.nodes), *failure.words)
    return submit(desk, *words, script, *failure.args)


def submit(desk: Desk, *words: str) -> dict[str, Any]:
    fixed = ("--preflight", "off", "--gpus-per-node", "1", "--framework", "env")
    return desk.submit(*fixed, *words)


def diagnosed(desk: Desk, job: dict[str, Any]) -> Failed:
    """Wait for the end of a job, and diagnose it."""
    ended = desk.clusterkit("wait", job["job_id"], "--json", timeout_s=600)
    found = desk.clusterkit("diagnose", job["job_id"], "--json")
    told = Failed(job=json.loads(ended.stdout), found=json.loads(found.stdout))
    assert found.returncode == (told.job["state"] != "cancelled"), f"{told}{found.stderr}"
    return told


@pytest.mark.parametrize("name", LIVE)
def test_the_cause_its_node_and_its_rank_are_named(name: str, failed: dict[str, Failed]) -> None:
    failure, told = FAILURES[name], failed[name]
    cause = told.found["cause"]
    assert (told.job["state"], cause["rule"]) == (failure.state, failure.rule), told
    if failure.rank is not None:
        nodes = {node["node_rank"]: node["node"] for node in told.job["nodes"]}
        assert (cause["node"], cause["rank"]) == (nodes[failure.rank], failure.rank), told


def test_of_a_cancelled_job_it_is_said_that_it_was(failed: dict[str, Failed]) -> None:
    assert failed["cancel"].found["cause"]["rule"] == "cancelled"


def test_of_a_preempted_job_it_is_said_that_it_was(lab: Lab) -> None:
    """Slurm calls one that ends in its grace time failed."""
    desk = Desk.of(lab, "preempted")
    script = desk.write("sleep.py", "import time\nprint('on', flush=True)\ntime.sleep(300)\n")
    job = submit(desk, "--set", "sbatch.partition=low", "--nodes", "2", script)
    log = RunFolder(Path(job["run_dir"])).log(1)
    wait_until(lambda: log.exists() and "on" in log.read_text(), 60)
    urgent = ("sbatch", "--partition=high", "--nodes=3", "--exclusive", "--wrap=sleep 1")
    lab.run("head", urgent, cwd=desk.folder, check=True)
    told = diagnosed(desk, job)
    assert (told.job["state"], told.found["cause"]["rule"]) == ("preempted", "preempted"), told
