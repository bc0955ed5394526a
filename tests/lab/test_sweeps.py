"""Arrays and dependencies on the practice cluster: on Slurm, and over ssh, by clients."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.model import NodeResult
from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers.desk import Desk
from tests.helpers.lab_jobs import await_true, started

pytestmark = pytest.mark.lab

TRAIN = """\
import os, sys, time
print("value", sys.argv[1], flush=True)
if sys.argv[2] == "go":
    while not os.path.exists("go"):
        time.sleep(0.1)
else:
    time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""
"""Lasts so many seconds, or until the test has written the file `go`."""
ONE = ("--framework", "env", "--gpus-per-node", "1", "--preflight", "off")
SLURM = ("--cluster", "lab", *ONE)
SSH = ("--cluster", "rack", *ONE)


@pytest.fixture
def script(desk: Desk) -> str:
    (desk.folder / "go").unlink(missing_ok=True)
    return desk.write("train.py", TRAIN)


def submit(desk: Desk, *words: str) -> dict[str, Any]:
    document = desk.submit(*words)
    assert document["returncode"] == 0
    return document


def result_of(job: dict[str, Any]) -> NodeResult:
    (result,) = node_results.read_results(RunFolder(Path(job["run_dir"]))).nodes
    return result


def most_at_once(jobs: list[dict[str, Any]]) -> int:
    """Return how many of these jobs ran at one moment, by what their nodes wrote."""
    results = [result_of(job) for job in jobs]
    return max(
        sum(one.started_at <= other.started_at < one.ended_at for one in results)
        for other in results
    )


def ending(desk: Desk, job: str) -> tuple[str, str | None]:
    document = json.loads(desk.clusterkit("wait", job, "--json").stdout)
    return document["state"], document["reason"]


# Slurm -----------------------------------------------------------------------------------------


def test_slurm_runs_no_more_of_an_array_than_its_limit(desk: Desk, script: str) -> None:
    array = submit(desk, *SLURM, "--array", "s=1,2,3,4%2", script, "{s}", "go", "0")
    assert [job["index"] for job in array["jobs"]] == [0, 1, 2, 3]
    folders = [RunFolder(Path(job["run_dir"])) for job in array["jobs"]]
    await_true(lambda: all(started(run, nodes=1)() for run in folders[:2]))
    assert not any(run.log(0).exists() for run in folders[2:])
    desk.write("go", "")
    waited = desk.clusterkit("wait", array["array"], "--json")
    assert waited.returncode == 0, waited.stderr
    jobs = json.loads(waited.stdout)["jobs"]
    assert {job["state"] for job in jobs} == {"succeeded"}
    assert most_at_once(jobs) == 2
    said = desk.clusterkit("logs", f"{array['array']}/2")
    assert said.stdout == "value 3\n"


def test_slurm_starts_jobs_by_how_the_one_before_has_ended(desk: Desk, script: str) -> None:
    name = submit(desk, *SLURM, script, "x", "go", "5")["job_id"]
    after = {
        how: submit(desk, *SLURM, "--after", f"{name}:{how}", script, how, "0", "0")
        for how in ("ok", "any", "fail")
    }
    then = submit(desk, *SLURM, "--after", after["ok"]["job_id"], script, "y", "0", "0")
    assert (after["ok"]["state"], after["ok"]["reason"]) == (
        "pending",
        f"after {name} has succeeded",
    )
    desk.write("go", "")
    assert ending(desk, name)[0] == "failed"
    why = "and it was to run after its success"
    first = after["ok"]["job_id"]
    assert ending(desk, first) == ("cancelled", f"{name} failed, {why}")
    assert ending(desk, then["job_id"]) == ("cancelled", f"{first} was cancelled, {why}")
    for how in ("any", "fail"):
        assert ending(desk, after[how]["job_id"]) == ("succeeded", None)
    # Slurm itself would let a job run after one that it has forgotten.
    refused = desk.clusterkit("submit", *SLURM, "--after", name, script, "z", "0", "0")
    assert refused.returncode == 2
    assert f"{name} failed, so this job would never run" in refused.stderr
    late = submit(desk, *SLURM, "--after", f"{name}:fail", script, "z", "0", "0")
    assert ending(desk, late["job_id"])[0] == "succeeded"


def test_a_cancelled_array_on_slurm_starts_none_of_its_waiting_jobs(
    desk: Desk, script: str
) -> None:
    array = submit(desk, *SLURM, "--array", "s=0-5%1", script, "{s}", "60", "0")
    folders = [RunFolder(Path(job["run_dir"])) for job in array["jobs"]]
    await_true(started(folders[0], nodes=1))
    assert desk.state(array["jobs"][0]["job_id"]) == "running"
    done = desk.clusterkit("cancel", array["array"])
    assert (done.returncode, done.stdout) == (0, f"{array['array']} 6 cancelled\n")
    assert [run.log(0).exists() for run in folders][1:] == [False] * 5


# ssh -------------------------------------------------------------------------------------------


def test_over_ssh_an_array_uses_all_machines_and_keeps_its_limit(desk: Desk, script: str) -> None:
    array = submit(desk, *SSH, "--array", "s=1,2,3,4%2", script, "{s}", "go", "0")
    assert [job["state"] for job in array["jobs"]][2:] == ["pending", "pending"]
    folders = [RunFolder(Path(job["run_dir"])) for job in array["jobs"]]
    await_true(lambda: all(started(run, nodes=1)() for run in folders[:2]))
    desk.write("go", "")
    await_true(lambda: bool(node_results.read_results(folders[3]).nodes))  # nobody looks on
    done = desk.clusterkit("wait", array["array"], "--json")
    assert done.returncode == 0, done.stderr
    jobs = json.loads(done.stdout)["jobs"]
    assert most_at_once(jobs) == 2
    assert {result_of(job).node for job in jobs} == {"n1", "n2", "n3"}


def test_whoever_looks_on_starts_held_jobs_and_may_be_killed(desk: Desk, script: str) -> None:
    first = submit(desk, *SSH, script, "x", "go", "5")["job_id"]
    never = submit(desk, *SSH, "--after", first, script, "y", "0", "0")
    then = submit(desk, *SSH, "--after", f"{first}:fail", script, "z", "0", "0")
    assert (never["state"], never["reason"]) == ("pending", f"after {first} has succeeded")
    argv = [sys.executable, "-m", "clusterkit", "supervise", then["job_id"]]
    client = desk.lab.popen("head", argv, cwd=desk.folder, env=desk.environment())
    with pytest.raises(subprocess.TimeoutExpired):
        client.wait(2)
    client.kill()
    client.wait()
    desk.write("go", "")
    followed = desk.clusterkit("logs", "-f", then["job_id"])
    assert (followed.returncode, followed.stdout) == (0, "value z\n")
    why = f"{first} failed, and it was to run after its success"
    assert ending(desk, never["job_id"]) == ("cancelled", why)


def test_jobs_of_an_array_wait_for_slots_that_others_hold(desk: Desk, script: str) -> None:
    words = ("--cluster", "rack", "--framework", "env", "--preflight", "off")
    held = submit(desk, *words, "--nodes", "3", script, "x", "go", "0")
    await_true(started(RunFolder(Path(held["run_dir"]))))
    holder = held["job_id"]
    assert desk.state(holder) == "running"
    array = submit(desk, *SSH, "--array", "s=1,2", script, "{s}", "0", "0")
    assert {job["state"] for job in array["jobs"]} == {"pending"}
    errors = desk.folder / "errors"
    argv = [sys.executable, "-m", "clusterkit", "wait", array["array"]]
    with errors.open("w") as stream:
        client = desk.lab.popen(
            "head", argv, cwd=desk.folder, env=desk.environment(), stderr=stream
        )
    await_true(lambda: "waits: " in errors.read_text())
    desk.write("go", "")
    client.communicate(timeout=90)
    assert client.returncode == 0, errors.read_text()
    assert "slots 0,1 held by" in errors.read_text()
    assert ending(desk, holder)[0] == "succeeded"


def test_a_cancelled_array_over_ssh_is_over_at_once(desk: Desk, script: str) -> None:
    array = submit(desk, *SSH, "--array", "s=0-3%1", script, "{s}", "60", "0")
    done = desk.clusterkit("cancel", array["array"])
    assert (done.returncode, done.stdout) == (0, f"{array['array']} 4 cancelled\n")
    assert desk.clusterkit("wait", array["array"]).returncode == 1
