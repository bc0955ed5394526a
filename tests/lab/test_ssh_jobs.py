"""Jobs on the practice cluster's hosts as plain machines reached by ssh, and faults one by one."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers.desk import Desk
from tests.helpers.lab_faults import DOUBLES, sshd_stopped
from tests.helpers.lab_jobs import Cluster, await_true, is_soon, one_process, started
from tests.lab import Lab

pytestmark = pytest.mark.lab

THREE = ("--cluster", "rack", "--framework", "torchrun", "--nodes", "3")
CLOCK = DOUBLES / "clock"
SLEEP = "echo asleep; sleep 300"
TWO_SLOTS = {"slots": 2, "gpus_per_node": [1]}


@pytest.fixture
def cluster(lab: Lab, tmp_path: Path) -> Cluster:
    return Cluster(lab, tmp_path, kind="ssh")


def running(cluster: Cluster, body: str = SLEEP, **options: object) -> RunFolder:
    """Submit a job, and wait until every node has said something."""
    run = cluster.submit(body, **options)
    await_true(started(run))
    return run


def ended(cluster: Cluster, run: RunFolder) -> tuple[str, str | None]:
    """Return the state of a job once it is over, and why, with no process of it left."""
    document = cluster.over(run)
    await_true(lambda: not cluster.left(run))
    await_true(lambda: not any(cluster.lab.processes(n, run.run_id) for n in cluster.lab.nodes))
    return document["state"], document["reason"]


def test_every_node_says_its_word_and_the_end_is_noticed_soon(cluster: Cluster) -> None:
    run = cluster.submit("echo $CK_NODE_NAME; sleep 1")
    over = cluster.over(run)
    assert [run.log(rank).read_text().strip() for rank in range(3)] == ["n1", "n2", "n3"]
    since = max(path.stat().st_mtime for path in run.ends.iterdir())
    assert is_soon(cluster.lab, time.time() - since)
    assert (over["state"], over["reason"]) == ("succeeded", None)
    assert json.loads(cluster.ck("status", run.run_id, "--json")[1]) == over
    await_true(lambda: not cluster.left(run))


def test_taken_slots_are_refused_by_name_and_free_after_a_cancel(cluster: Cluster) -> None:
    run = running(cluster)
    refused = cluster.client("true")
    assert refused.returncode != 0
    for node in cluster.lab.nodes:
        held = f"{node}: 1 slot wanted, 0 of 1 free: slot 0 held by {run.run_id} of root since"
        assert held in refused.stderr
    # Two clients that cancel at once do not disturb each other.
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda _: cluster.ck("cancel", run.run_id)[0], range(2)))
    assert said == [0, 0]
    assert ended(cluster, run) == ("cancelled", None)
    assert ended(cluster, cluster.submit("true")) == ("succeeded", None)


def test_two_jobs_share_a_node_with_slots_for_both(cluster: Cluster) -> None:
    first = running(cluster, slots=2, gpus_per_node=[1])
    second = running(cluster, slots=2, gpus_per_node=[1])
    for run in (first, second):
        cluster.ck("cancel", run.run_id)
        assert ended(cluster, run) == ("cancelled", None)


def test_a_killed_command_is_named(cluster: Cluster) -> None:
    dies = "until [[ -e $CK_RESULTS/go ]]; do sleep 0.2; done; kill -KILL $$"
    run = running(cluster, f"echo on; [[ $CK_NODE_RANK = 1 ]] && {{ {dies}; }}; sleep 300")
    began = time.monotonic()
    (run.results / "go").touch()
    assert ended(cluster, run) == ("failed", "n2 was ended by signal 9")
    assert is_soon(cluster.lab, time.monotonic() - began)


def test_a_node_agent_told_to_end_by_hand_is_named_and_ends_the_others(cluster: Cluster) -> None:
    run = running(cluster)
    agent = one_process(cluster.lab, "n2", f"ssh[.]agent .*{run.run_id}")
    os.kill(agent.pid, signal.SIGTERM)
    assert ended(cluster, run) == ("failed", "n2 was told to end (SIGTERM)")


def test_ranks_that_break_by_a_cancel_do_not_make_it_a_failure(cluster: Cluster) -> None:
    # As in a collective: whoever sees another gone fails at once.
    body = (
        'echo on > $CK_NODE_RANK.up; trap "rm $PWD/$CK_NODE_RANK.up; exit 1" TERM;'
        " up() { [[ -e 0.up && -e 1.up && -e 2.up ]]; }; until up; do sleep 0.02; done; echo on;"
        " while up; do sleep 0.02; done; exit 1"
    )
    run = running(cluster, f"cd {cluster.folder}; {body}")
    cluster.ck("cancel", run.run_id)
    assert ended(cluster, run) == ("cancelled", None)


def test_nodes_may_end_at_different_times(cluster: Cluster) -> None:
    run = running(cluster, "echo on; sleep $((CK_NODE_RANK * 4))")
    assert ended(cluster, run) == ("succeeded", None)


def test_without_sshd_and_client_the_job_goes_on(cluster: Cluster) -> None:
    run = running(cluster, "echo on; until [[ -e $CK_RESULTS/go ]]; do sleep 0.2; done")
    with sshd_stopped(cluster.lab, "n2"):
        assert cluster.state(run)[0] == "running"
        (run.results / "go").touch()
        await_true(lambda: len(list(run.ends.iterdir())) == 3)
    assert ended(cluster, run) == ("succeeded", None)


def test_a_heartbeat_tells_of_a_job_whose_nodes_do_not_answer(cluster: Cluster) -> None:
    run = running(cluster)
    with ExitStack() as stack:
        for node in cluster.lab.nodes:
            stack.enter_context(sshd_stopped(cluster.lab, node))
        told = json.loads(cluster.ck("status", run.run_id, "--json")[1])
        silence = "no answer from n1, n2, n3"
        assert (told["state"], told["reason"]) == ("running", f"{silence}; heartbeats go on")
        for rank, node in enumerate(cluster.lab.nodes):
            found = one_process(cluster.lab, node, f"ssh[.]agent {run.path} {rank}")
            os.kill(found.pid, signal.SIGSTOP)
            past = time.time() - 300
            os.utime(run.heartbeat(rank), (past, past))
        told = json.loads(cluster.ck("status", run.run_id, "--json")[1])
        assert told["state"] == "unknown"
        assert told["reason"].startswith(f"{silence}, nor a heartbeat for 30")
    for rank, node in enumerate(cluster.lab.nodes):
        found = one_process(cluster.lab, node, f"ssh[.]agent {run.path} {rank}")
        os.kill(found.pid, signal.SIGCONT)
    cluster.ck("cancel", run.run_id)
    assert ended(cluster, run) == ("cancelled", None)


@pytest.mark.parametrize("ahead_s", [3600, -3600])
def test_clients_whose_clocks_are_an_hour_off(cluster: Cluster, ahead_s: int) -> None:
    def clock(wrong_s: int) -> None:
        cluster.environment |= {"PYTHONPATH": str(CLOCK), "CLOCK_AHEAD_S": str(wrong_s)}

    clock(ahead_s)
    run = running(cluster, "echo on; sleep 3; exit $((CK_NODE_RANK * 3))", **TWO_SLOTS)
    clock(-ahead_s)
    stopped = running(cluster, **TWO_SLOTS)
    assert cluster.ck("wait", run.run_id)[0] == 1
    clock(ahead_s)
    assert cluster.state(stopped) == ("running", None)
    assert cluster.state(run)[0] == "failed"
    assert cluster.ck("cancel", stopped.run_id)[0] == 0
    clock(0)
    assert ended(cluster, run)[0] == "failed"
    assert ended(cluster, stopped) == ("cancelled", None)


def test_at_the_time_limit_scripts_are_told_and_ended(cluster: Cluster) -> None:
    told = 'import signal, time; signal.signal(12, lambda *_: print("notice", flush=True))'
    long = "[time.sleep(0.1) for _ in range(999)]"
    body = f"exec {sys.executable} -c '{told}; print(1, flush=True); {long}'"
    run = running(cluster, body, time="0:40")  # they have three quarters of it to begin
    assert ended(cluster, run) == ("timeout", None)
    assert all("notice" in run.log(rank).read_text() for rank in range(3))


def test_what_hides_from_its_group_is_ended(cluster: Cluster) -> None:
    hidden = "(setsid env -i sleep 301 &) ; setsid nohup sleep 302 >/dev/null & echo on; sleep 300"
    run = running(cluster, hidden)
    cluster.ck("cancel", run.run_id)
    assert ended(cluster, run) == ("cancelled", None)
    for node in cluster.lab.nodes:
        assert not cluster.lab.processes(node, "sleep 30[0-2]")


@pytest.mark.parametrize("kind", ["ssh", "slurm"])
def test_a_cancel_at_any_moment_leaves_nothing(lab: Lab, tmp_path: Path, kind: str) -> None:
    """Five moments, most of them while the job starts; which ones, differs from run to run."""
    cluster = Cluster(lab, tmp_path, kind=kind)
    for after_s in [0.0, *(random.uniform(k, k + 0.75) for k in (0, 0.75, 1.5, 2.25))]:
        run, client = cluster.submitting(SLEEP)
        time.sleep(after_s)
        began = time.monotonic()
        assert cluster.ck("cancel", str(run.path))[0] == 0, after_s
        took_s = time.monotonic() - began
        assert not cluster.left(run), after_s
        assert is_soon(lab, took_s)
        print(f"cancelled after {after_s:.1f} s: took {took_s:.1f} s")
        client.wait(120)
        assert ended(cluster, run)[0] == "cancelled", after_s


def test_a_node_that_cannot_take_the_job_is_named(desk: Desk) -> None:
    config = desk.folder / "clusterkit.yaml"
    config.write_text(config.read_text().replace("n[1-3]", "n[1-2],nowhere"))
    script = desk.write("job.py", "")
    refused = desk.clusterkit("submit", *THREE, "--preflight", "off", script)
    assert refused.returncode == 2
    assert "nowhere: " in refused.stderr
    assert "n1: " not in refused.stderr
    await_true(lambda: not desk.lab.processes("n1", "ssh[.]agent"))
    (run,) = (desk.folder / "runs").iterdir()
    assert desk.state(run.name) == "failed"


FUNCTION = """
import json, os, signal, subprocess, submitit, time

def add(a, b):
    env = submitit.JobEnvironment()
    print("adding on", os.uname().nodename)
    return [a + b, env.node, env.num_nodes, os.uname().nodename]

def fail():
    if submitit.JobEnvironment().node == 0:
        raise ValueError("not today")
    time.sleep(300)

def linger():
    subprocess.Popen(["setsid", "sleep", "303"])
    print("lingering", flush=True)
    time.sleep(300)

class Count:
    def __init__(self, reached=0):
        self.reached = reached

    def __call__(self):
        self.reached += 1
        if self.reached < 3:
            os.kill(os.getpid(), signal.SIGUSR2)
        return [self.reached, os.getpid()]

    def checkpoint(self):
        return submitit.helpers.DelayedSubmission(Count(self.reached))

executor = submitit.AutoExecutor("jobs", cluster="ssh")
executor.update_parameters(nodes=2, timeout_min=2, gpus_per_node=2)
job = executor.submit(add, 2, 3)
print(json.dumps(job.results()), json.dumps("adding on" in job.stdout()))
executor.update_parameters(nodes=1)
jobs = [executor.submit(add, k, k) for k in range(3)]
print(json.dumps([j.result()[0] for j in jobs]))
print(executor.submit(Count()).result()[0])
executor.update_parameters(nodes=2)
count = executor.submit(Count())
print("over ssh only jobs of one node are" in str(count.exception()))
bad = executor.submit(fail)
try:
    bad.result()
except submitit.core.utils.FailedJobError as error:
    print("not today" in str(error))
stuck = executor.submit(linger)
while "lingering" not in (stuck.stdout() or ""):
    time.sleep(0.1)
stuck.cancel()
stuck.wait()
print(stuck.state)
"""


def test_submitit_runs_any_function_over_ssh(desk: Desk) -> None:
    script = desk.write("functions.py", FUNCTION)
    done = desk.lab.run(
        "head", [sys.executable, script], cwd=desk.folder, env=desk.environment(), timeout_s=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-6:] == [
        '[[5, 0, 2, "n1"], [5, 1, 2, "n2"]] true',
        "[0, 2, 4]",
        "3",
        "True",
        "True",
        "CANCELLED",
    ]
    for node in ("n1", "n2"):
        assert not desk.lab.processes(node, "sleep 303")
