"""Jobs on the practice cluster's hosts as plain machines reached by ssh, and faults one by one."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clusterkit.runfolder import RunFolder
from tests.desk import Desk
from tests.lab import Lab
from tests.lab_faults import sshd_stopped

pytestmark = pytest.mark.lab

CONFIG = """\
default_cluster: rack
clusters:
  rack:
    kind: ssh
    hosts: n[1-3]
    gpus_per_node: 2
    python: {python}
    run_dir: runs
    env: {{DS_ACCELERATOR: cpu}}
"""
SLEEP = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print("asleep", os.environ["RANK"], flush=True)
time.sleep(300)
"""
NOTICED = """
import os, signal, sys, time
def checkpoint(*_):
    print("notice", flush=True)
signal.signal(signal.SIGUSR2, checkpoint)
print("asleep", flush=True)
while True: time.sleep(0.1)
"""
THREE = ("--framework", "torchrun", "--nodes", "3")


@pytest.fixture
def desk(lab: Lab, tmp_path: Path) -> Desk:
    """Give a desk whose cluster is the three hosts as a rack."""
    (tmp_path / "clusterkit.yaml").write_text(CONFIG.format(python=sys.executable))
    return Desk(lab, tmp_path)


class Rack:
    """Jobs on the rack, as typed, and what is left of them."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def start(self, *words: str, script: str = SLEEP, ready: str = "asleep") -> RunFolder:
        """Submit, and wait until every node has said that it runs."""
        name = self.desk.write("job.py", script)
        done = self.desk.submit(*(words or THREE), name)
        run = RunFolder(Path(done["run_dir"]))
        nodes = json.loads(run.submission.read_text())["tasks"]
        until(lambda: all(ready in text(run.log(rank)) for rank in range(nodes)), 60)
        return run

    def ended(self, run: RunFolder) -> dict[str, Any]:
        """Return the state of a job once it is over, with its reason, and no process left."""
        done = self.desk.clusterkit("wait", run.run_id, "--json", timeout_s=120)
        document: dict[str, Any] = json.loads(done.stdout)
        until(lambda: self.left(run) == {}, 30)
        return document

    def left(self, run: RunFolder) -> dict[str, list[str]]:
        """Return the processes of a run that live, by host."""
        wanted = f"{run.run_id}|{self.desk.folder}/job.py"
        found = {
            host: [" ".join(p.argv)[:80] for p in self.desk.lab.processes(host, wanted)]
            for host in self.desk.lab.nodes
        }
        return {host: processes for host, processes in found.items() if processes}

    def kill(self, host: str, pattern: str) -> None:
        """Kill the first process of a host that matches."""
        process = self.desk.lab.processes(host, pattern)[0]
        os.kill(process.pid, signal.SIGKILL)


@pytest.fixture
def rack(desk: Desk) -> Rack:
    return Rack(desk)


@contextmanager
def cut_off(lab: Lab, host: str) -> Iterator[None]:
    """Take the link of a host down."""
    lab.run(host, ["ip", "link", "set", "eth0", "down"], check=True)
    try:
        yield
    finally:
        lab.run(host, ["ip", "link", "set", "eth0", "up"], check=True)


def until(true: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.train
@pytest.mark.parametrize(
    ("framework", "script"),
    [
        ("torchrun", "train_ddp.py"),
        ("deepspeed", "train_deepspeed.py"),
        ("horovod", "train_horovod.py"),
    ],
)
def test_training_learns(rack: Rack, framework: str, script: str) -> None:
    examples = Path(__file__).resolve().parent.parent / "examples"
    words = ["--deepspeed_config", str(examples / "deepspeed.json")]
    done = rack.desk.submit(
        "--wait", "--framework", framework, "--nodes", "3", str(examples / script),
        *(words if framework == "deepspeed" else []), "--steps", "20",
    )  # fmt: skip
    assert done["state"] == "succeeded"
    log = text(RunFolder(Path(done["run_dir"])).log(0))
    losses = [float(loss) for loss in re.findall(r"loss\W+([0-9.]+)", log)]
    assert losses[0] > 3
    assert losses[-1] < 2


def test_cancel_leaves_nothing_and_frees_the_slots(rack: Rack) -> None:
    run = rack.start()
    refused = rack.desk.clusterkit("submit", *THREE, "job.py")
    assert refused.returncode == 2
    assert f"n2: 2 slots wanted, 0 of 2 free: slots 0,1 held by {run.run_id}" in refused.stderr
    assert "--exclude n2" in refused.stderr
    done = rack.desk.clusterkit("cancel", run.run_id)
    assert done.returncode == 0, done.stderr
    assert rack.ended(run)["state"] == "cancelled"
    again = rack.desk.submit("--wait", *THREE, rack.desk.write("ok.py", "print('fine')"))
    assert again["state"] == "succeeded"


def test_a_killed_rank_is_named(rack: Rack) -> None:
    run = rack.start()
    began = time.monotonic()
    rack.kill("n2", r"python\S* -u job\.py|python\S* job\.py")
    ended = rack.ended(run)
    assert time.monotonic() - began < 30
    assert ended["state"] == "failed"
    assert "n2" in ended["reason"]


def test_a_killed_keeper_ends_the_job_and_frees_its_slots(rack: Rack) -> None:
    run = rack.start()
    rack.kill("n3", "ssh_keeper")
    ended = rack.ended(run)
    assert ended["state"] == "failed"
    assert "n3" in ended["reason"]
    again = rack.desk.submit("--wait", *THREE, rack.desk.write("ok.py", "print('fine')"))
    assert again["state"] == "succeeded"


def test_without_sshd_and_client_the_job_goes_on(rack: Rack, tmp_path: Path) -> None:
    run = rack.start(script="import time; print('asleep', flush=True); time.sleep(8)")
    with sshd_stopped(rack.desk.lab, "n2"):
        time.sleep(6)
        silent = rack.desk.clusterkit("status", run.run_id)
    assert silent.returncode in {0, 1}
    assert "running" in silent.stdout
    assert rack.ended(run)["state"] == "succeeded"


def test_a_link_that_is_down_for_five_seconds_is_survived(rack: Rack) -> None:
    script = "import time; print('asleep', flush=True); time.sleep(15)"
    run = rack.start(script=script)
    with cut_off(rack.desk.lab, "n3"):
        time.sleep(5)
    assert rack.ended(run)["state"] == "succeeded"


def test_a_node_that_is_cut_off_is_named_and_ends(rack: Rack) -> None:
    run = rack.start()
    began = time.monotonic()
    with cut_off(rack.desk.lab, "n3"):
        until(lambda: rack.left(run) == {}, 45)
        took = time.monotonic() - began
    assert took < 45
    ended = rack.ended(run)
    assert (ended["state"], ended["reason"]) == ("failed", "n3 no longer answers")


def test_at_the_time_limit_scripts_are_told_and_ended(rack: Rack) -> None:
    run = rack.start(*THREE, "--time", "0:20", script=NOTICED)
    assert rack.ended(run)["state"] == "timeout"
    assert all("notice" in text(run.log(rank)) for rank in range(3))


def test_a_node_that_cannot_take_the_job_is_named(rack: Rack) -> None:
    config = rack.desk.folder / "clusterkit.yaml"
    config.write_text(config.read_text().replace("n[1-3]", "n[1-2],nowhere"))
    refused = rack.desk.clusterkit("submit", *THREE, rack.desk.write("job.py", SLEEP))
    assert refused.returncode == 2
    assert "nowhere: " in refused.stderr
    assert "n1: " not in refused.stderr
    until(lambda: not rack.desk.lab.processes("n1", "ssh_keeper"), 20)
    listed = json.loads(rack.desk.clusterkit("status", "--json").stdout)
    assert [job["state"] for job in listed["jobs"]] == ["failed"]


FUNCTION = """
import json, os, submitit, sys

def add(a, b):
    env = submitit.JobEnvironment()
    print("adding on", os.uname().nodename)
    return [a + b, env.node, env.num_nodes, os.uname().nodename]

def fail():
    raise ValueError("not today")

executor = submitit.AutoExecutor("jobs", cluster="ssh")
executor.update_parameters(nodes=2, timeout_min=2, gpus_per_node=2)
job = executor.submit(add, 2, 3)
print(json.dumps(job.results()), json.dumps("adding on" in job.stdout()))
executor.update_parameters(nodes=1)
jobs = [executor.submit(add, k, k) for k in range(3)]
print(json.dumps([j.result()[0] for j in jobs]), len({j.result()[3] for j in jobs}))
bad = executor.submit(fail)
try:
    bad.result()
except submitit.core.utils.FailedJobError as error:
    print("not today" in str(error))
"""


def test_submitit_runs_any_function_over_ssh(rack: Rack) -> None:
    script = rack.desk.write("functions.py", FUNCTION)
    done = rack.desk.lab.run(
        "head", [sys.executable, script], cwd=rack.desk.folder,
        env=rack.desk.environment(), timeout_s=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, several, failed = done.stdout.splitlines()[-3:]
    assert first == '[[5, 0, 2, "n1"], [5, 1, 2, "n2"]] true'
    assert several == "[0, 2, 4] 3"
    assert failed == "True"
