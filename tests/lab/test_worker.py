"""Jobs on a real Slurm without accounting: failing, ending, being found again."""

from __future__ import annotations

import json
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import processes
from clusterkit.executors.run import node_results, runfolder
from tests.helpers.lab_jobs import Cluster, await_true, is_soon, started
from tests.lab import Lab

pytestmark = pytest.mark.lab


@pytest.fixture
def cluster(lab: Lab, tmp_path: Path) -> Cluster:
    return Cluster(lab, tmp_path)


def test_success_is_noticed_soon(cluster: Cluster) -> None:
    run = cluster.submit("echo $CK_NODE_NAME; sleep 1")
    assert cluster.ck("wait", run.run_id)[0] == 0
    results = node_results.read_results(run).nodes
    assert is_soon(cluster.lab, time.time() - max(result.ended_at for result in results))
    assert [run.log(rank).read_text().strip() for rank in range(3)] == ["n1", "n2", "n3"]
    assert not run.submitit.joinpath("core").exists()
    await_true(lambda: not cluster.left(run))  # submitit is told after the result is written


def test_one_fails_and_the_others_hang(cluster: Cluster) -> None:
    run = cluster.submit(
        'echo on; [[ $CK_NODE_RANK = 1 ]] && { sleep 1; exit 3; }; trap "" TERM; '
        "setsid sleep 300 & sleep 300"
    )
    assert cluster.ends(run) == ("failed", 3)  # the others would take longer than is waited
    await_true(lambda: not cluster.left(run))


def test_a_job_that_slurm_suspends_and_resumes_goes_on(cluster: Cluster) -> None:
    """For longer than nodes wait for each other's calls; the time does not count."""
    run = cluster.submit("echo on; until [[ -e $CK_RESULTS/go ]]; do sleep 0.2; done", nodes=2)
    await_true(started(run, 2))
    job_id = json.loads(cluster.ck("status", run.run_id, "--json")[1])["job_id"]
    cluster.lab.run("head", ["scontrol", "suspend", job_id], check=True)
    time.sleep(12)
    assert cluster.state(run) == ("running", None)
    (run.results / "go").touch()
    cluster.lab.run("head", ["scontrol", "resume", job_id], check=True)
    assert cluster.ends(run) == ("succeeded", 0)


def test_a_rank_killed_by_a_signal(cluster: Cluster) -> None:
    run = cluster.submit("echo on; kill -KILL $$", nodes=1)
    assert cluster.ends(run) == ("failed", 137)


def test_a_killed_worker_leaves_nothing(cluster: Cluster) -> None:
    run = cluster.submit("echo on; setsid sleep 300 & sleep 300", nodes=2)
    await_true(started(run, 2))
    for process in cluster.lab.processes("n2", rf"clusterkit\.executors\.node .*{run.run_id}"):
        processes.send(process.pid, signal.SIGKILL)  # a child may have gone with its parent
    assert cluster.ends(run)[0] == "failed"
    await_true(lambda: not cluster.left(run))


def test_cancel_running_then_pending(cluster: Cluster) -> None:
    running = cluster.submit("echo on; sleep 300", directives={"cpus-per-task": "5"})
    await_true(started(running))
    pending = cluster.submit("echo never", directives={"cpus-per-task": "5"})
    known: dict[str, Any] = {}

    def foreseen() -> bool:
        """Tell whether Slurm has planned when it starts: at the end of the other one."""
        known.update(json.loads(cluster.ck("status", pending.run_id, "--json")[1]))
        return known["expected_at"] is not None

    await_true(foreseen)
    assert (known["state"], known["reason"]) == ("pending", "Resources")
    assert 0 < known["expected_at"] - time.time() < 400  # as Slurm rounds
    shown = cluster.ck("status")[1].splitlines()
    assert [line for line in shown if "pending" in line and "Resources" in line], shown
    assert cluster.ck("cancel", pending.run_id, running.run_id)[0] == 0
    assert cluster.state(pending) == ("cancelled", None)
    assert cluster.state(running) == ("cancelled", 143)
    assert {result.reason for result in node_results.read_results(running).nodes} == {"cancelled"}
    assert cluster.ck("cancel", running.run_id)[0] == 0
    assert not pending.log(0).exists()
    await_true(lambda: not cluster.left(running))


def test_the_time_limit_with_a_notice_before_it(cluster: Cluster) -> None:
    catcher = cluster.folder / "catcher.py"
    catcher.write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGUSR2, lambda *_: print('notice', flush=True))\n"
        "print('on', flush=True)\n"
        "while True: time.sleep(0.5)\n"
    )
    run = cluster.submit(
        f"sleep 300 & {sys.executable} {catcher}",
        time="1",
        nodes=2,
        # Slurm looks every 30 s, and sends it so much earlier (job_time_limit() of slurmctld): the
        # scripts are there by then.
        directives={"signal": "USR2@15"},
    )
    assert cluster.ends(run, timeout_s=180) == ("timeout", 143)
    # Once, and deadly to nobody; what bash says of the end at the time limit may follow.
    assert run.log(1).read_text().split()[:2] == ["on", "notice"]
    assert run.log(1).read_text().count("notice") == 1
    assert {result.reason for result in node_results.read_results(run).nodes} == {"timeout"}


NOTICED = """
import os, pathlib, signal, sys, time
told = pathlib.Path(os.environ["CK_RESULTS"], "told")
rank = int(os.environ["CK_NODE_RANK"])

def wait(exists=os.path.exists, path=str(told), sleep=time.sleep):
    for _ in range(600):
        if exists(path):
            sleep(2)
            return
        sleep(0.5)

class Late:
    def __del__(self, wait=wait):
        wait()

if rank == 0:  # has done its work, and Python, which shuts down, has dropped its handlers
    signal.signal(signal.SIGUSR2, lambda *_: None)
    late = Late()
elif rank == 1:
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    wait()
else:
    signal.signal(signal.SIGUSR2, lambda *_: (print("told", flush=True), told.touch()))
    wait()
print("work done", flush=True)
"""


def test_the_notice_is_sent_to_nobody_who_would_die_of_it(cluster: Cluster) -> None:
    script = cluster.folder / "noticed.py"
    script.write_text(NOTICED)
    run = cluster.submit(f"{sys.executable} {script}", time="1", directives={"signal": "USR2@15"})
    assert cluster.ends(run, timeout_s=180) == ("succeeded", 0)
    assert run.log(2).read_text().split("\n")[:2] == ["told", "work done"]
    assert [run.log(rank).read_text().strip() for rank in (0, 1)] == ["work done"] * 2


def test_a_job_whose_client_died_is_found_again(cluster: Cluster) -> None:
    tools = cluster.folder / "bin"
    tools.mkdir()
    sbatch = tools / "sbatch"
    sbatch.write_text('#!/bin/bash\n/usr/bin/sbatch "$@" >/dev/null; kill -9 $PPID\n')
    sbatch.chmod(0o755)
    run = cluster.submit("echo on; sleep 3", path=str(tools))
    submission = runfolder.read_submission(run)
    assert submission is not None
    assert cluster.state(run)[0] in {"pending", "running"}
    assert cluster.ck("wait", run.run_id)[0] == 0
    submission = runfolder.read_submission(run)
    assert submission is not None
    assert (submission.job_id or "").isdigit()
    await_true(lambda: len(list(run.submitit.glob("*_result.pkl"))) == 3)


@pytest.mark.parametrize("seconds", [1, 6], ids=["id in time", "id too late"])
def test_cancel_while_sbatch_is_on_its_way(cluster: Cluster, seconds: int) -> None:
    tools = cluster.folder / "bin"
    tools.mkdir()
    sbatch = tools / "sbatch"
    cancelled = f"compgen -G '{cluster.folder}/runs/*/cancelled' >/dev/null"
    sbatch.write_text(
        f"#!/bin/bash\nuntil {cancelled}; do sleep 0.1; done\n"
        f'sleep {seconds}\nexec /usr/bin/sbatch "$@"\n'
    )
    sbatch.chmod(0o755)
    with ThreadPoolExecutor() as pool:
        submitting = pool.submit(cluster.submit, "echo never; sleep 300", path=str(tools))
        await_true(lambda: any(cluster.folder.glob("runs/*/submission.json")))
        (path,) = cluster.folder.glob("runs/*")
        assert cluster.ck("cancel", str(path))[0] == 0
        run = submitting.result()
    assert cluster.state(run)[0] == "cancelled"
    await_true(lambda: not cluster.lab.run("head", ["squeue", "-h"]).stdout.strip())
    assert not any(run.log(rank).exists() for rank in range(3))
