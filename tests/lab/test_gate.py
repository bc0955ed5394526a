"""`clusterkit submit` on the practice cluster asks preflight first, and heeds the answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.desk import Desk
from tests.helpers.lab_faults import (
    busy,
    drained,
    full_shared_memory,
    no_logins_between_nodes,
    wait_for_state,
)
from tests.lab import Lab

pytestmark = pytest.mark.lab

HELLO = "import os; print('hello from', os.uname().nodename, os.environ['RANK'], flush=True)\n"
JOB = ("--framework", "env", "--gpus-per-node", "1")
TWO = (*JOB, "--nodes", "2")
FULL = "/dev/shm is full"


@pytest.fixture(autouse=True)
def _idle_again(lab: Lab) -> Iterator[None]:
    """Have every node from the tests before this one, and leave it to those after it.

    One that still ends another job is not asked, and so would keep no job out.
    """
    wait_for_state(lab, "idle", *lab.nodes)
    yield
    wait_for_state(lab, "idle", *lab.nodes)


@pytest.fixture
def script(desk: Desk) -> str:
    return desk.write("hello.py", HELLO)


def queued(desk: Desk) -> str:
    """Return the jobs of the script that Slurm knows; the questions of preflight are jobs too."""
    return desk.lab.run("head", ["squeue", "--noheader", "--name=hello", "--format=%i"]).stdout


def submitted(desk: Desk, *words: str) -> dict[str, Any]:
    """Submit a job that Slurm takes, and cancel it: running it would show nothing more."""
    done = desk.submit(*words)
    # which may have run already
    record = desk.lab.run("head", ["scontrol", "show", "job", done["job_id"]], check=True).stdout
    assert " JobName=hello" in record
    desk.clusterkit("cancel", done["job_id"])
    return done


def told(done: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """Return what `preflight.json` in the run folder says that is not fine."""
    document = json.loads((Path(done["run_dir"]) / "preflight.json").read_text())
    return {
        f["id"]: (f["verdict"], f["nodes"])
        for f in document["findings"]
        if f["verdict"] not in {"pass", "skip"}
    }


def test_mpi_needs_mpirun_and_no_logins_between_nodes(desk: Desk) -> None:
    script = desk.write("ranks.py", "import os; print('rank', os.environ['RANK'], flush=True)\n")
    words = ("--cluster", "rack", "--framework", "mpi", "--nodes", "2", "--gpus-per-node", "1")
    without = desk.clusterkit("submit", *words, "--set", "mpi.mpirun=mpirun-5", script)
    assert (without.returncode, without.stdout) == (1, "")
    missed = "fail     HOST018 host-mpirun  n[1-2]\n         no mpirun-5 to start the ranks with\n"
    assert missed in without.stderr
    with no_logins_between_nodes(desk.lab):
        refused = desk.lab.run("n1", ["ssh", "n2", "true"])
        assert "Permission denied" in refused.stderr
        done = desk.submit(*words, "--wait", script)
        named = desk.clusterkit("preflight", "--cluster", "rack", "--select", "SSH004", "--json")
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    assert {"rank 0", "rank 1"} <= {line.strip()[-6:] for line in output.splitlines()}
    assert told(done).get("SSH004") is None
    found = [f for f in json.loads(named.stdout)["findings"] if f["verdict"] == "fail"]
    assert [(f["id"], f["nodes"]) for f in found] == [("SSH004", [node]) for node in desk.lab.nodes]


def where_it_ran(desk: Desk, done: dict[str, Any]) -> list[str]:
    """Return the nodes that said hello, in rank order."""
    logs = desk.clusterkit("logs", done["job_id"]).stdout
    found = [line.split()[-2:] for line in logs.splitlines() if "hello from" in line]
    return [node for node, rank in sorted(found, key=lambda pair: int(pair[1]))]


def test_an_unfit_node_is_heeded(desk: Desk, script: str) -> None:
    """Refused, with what to type; and what was typed then does what it says."""
    before = set(desk.folder.glob("runs/*"))  # of earlier tests on a cluster that stayed up
    leaving = set(queued(desk).split())
    with full_shared_memory(desk.lab, "n2"):
        refused = desk.clusterkit("submit", *TWO, script)
        document = desk.clusterkit("submit", "--json", "--preflight", "auto", *TWO, script)
        too_few = desk.clusterkit("submit", "--exclude-unfit", *JOB, "--nodes", "3", script)
        assert set(queued(desk).split()) <= leaving
        assert set(desk.folder.glob("runs/*")) == before
        without = desk.submit("--wait", "--exclude-unfit", *TWO, script)
        forced = submitted(desk, "--force", *JOB, "--nodes", "3", script)
        unasked = submitted(desk, "--preflight", "off", *JOB, "--nodes", "3", script)

    assert (refused.returncode, refused.stdout) == (1, "")
    assert "fail     HOST010 host-shm  n2" in refused.stderr
    assert FULL in refused.stderr
    assert "error: not submitted: unhealthy: n2\n" in refused.stderr
    for flag in ("--exclude-unfit", "--exclude n2", "--force"):
        assert flag in refused.stderr.splitlines()[-1]

    assert document.returncode == 1
    parsed = json.loads(document.stdout)
    assert parsed["schema"] == 1
    assert parsed["error"]["message"] == "not submitted: unhealthy: n2"
    assert (parsed["preflight"]["usable"], parsed["preflight"]["exclude"]) == (["n1", "n3"], ["n2"])

    assert too_few.returncode == 1
    assert "unhealthy: n2; 2 of the 3 asked are left and 3 are needed" in too_few.stderr
    assert "--nodes" in too_few.stderr.splitlines()[-1]

    assert without["state"] == "succeeded"
    assert where_it_ran(desk, without) == ["n1", "n3"]
    assert told(without) == {"HOST010": ("fail", ["n2"])}
    assert "#SBATCH --exclude=n2\n" in (Path(without["run_dir"]) / "job.sbatch").read_text()

    assert told(forced) == {"HOST010": ("fail", ["n2"])}

    assert not (Path(unasked["run_dir"]) / "preflight.json").exists()


def test_a_job_that_is_unfit_itself_is_refused_without_asking(desk: Desk, script: str) -> None:
    """No node can be left out to mend a variable."""
    words = ("--exclude-unfit", *JOB, "--nodes", "1", "--env", "NCCL_SOCKET_IFNAM=eth0", script)
    done = desk.clusterkit("submit", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert "NCCL_SOCKET_IFNAM" in done.stderr
    assert "error: not submitted: the job cannot run\n" in done.stderr
    assert "--force" in done.stderr.splitlines()[-1]
    assert queued(desk) == ""


def test_a_variable_that_fits_no_node_is_refused(desk: Desk, script: str) -> None:
    done = desk.clusterkit("submit", *TWO, "--env", "NCCL_SOCKET_IFNAME=ib7", script)
    assert (done.returncode, done.stdout) == (1, "")
    assert "NCCL003 nccl-interfaces  n[1-3]" in done.stderr
    assert "no node of the 3 asked is left and 2 are needed" in done.stderr
    assert "is usable" not in done.stderr  # which would say the same again


def test_what_slurm_gives_to_nobody_keeps_no_job_out(desk: Desk, script: str) -> None:
    """A drained node is none of those that the job may get, unless it needs all of them."""
    with drained(desk.lab, "n2", "fan 3"):
        needs_it = desk.clusterkit("submit", *JOB, "--nodes", "3", script)
        done = submitted(desk, *TWO, script)
    assert needs_it.returncode == 1
    assert "drained: fan 3" in needs_it.stderr
    assert "2 of the 3 asked are left and 3 are needed" in needs_it.stderr
    assert told(done) == {}


def test_a_busy_node_keeps_no_job_out(desk: Desk, script: str) -> None:
    """It cannot be asked now, and will be free one day."""
    with busy(desk.lab, "n2"):
        done = submitted(desk, *JOB, "--nodes", "3", script)
    assert (done["returncode"], done["state"]) == (0, "pending")
    assert told(done) == {"SSH001": ("unknown", ["n2"])}


def test_a_node_that_is_unfit_when_the_job_starts_is_named(desk: Desk, script: str) -> None:
    """With `full`: the network is measured first, and then each node looks at itself."""
    with full_shared_memory(desk.lab, "n3"):
        words = ("--preflight", "full", "--force", "--exclude", "n2", *TWO, script)
        done = desk.submit("--wait", *words)
    assert (done["returncode"], done["state"]) == (1, "failed")
    assert done["exit_code"] == 69
    assert f"n3 is unhealthy: HOST010 {FULL}" in done["reason"]
    assert told(done)["HOST010"] == ("fail", ["n3"])
    document = json.loads((Path(done["run_dir"]) / "preflight.json").read_text())
    passed = {f["id"] for f in document["findings"] if f["verdict"] == "pass"}
    assert passed >= {"NET001", "NET002"}
    logs = desk.clusterkit("logs", done["job_id"]).stdout
    assert "checks of n3 before the start" in logs
    assert "hello from n3" not in logs
