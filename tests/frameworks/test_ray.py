"""Ray on the practice cluster: a cluster of the job's own, trained on, broken, cancelled."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.environment import desk_of, python_of
from tests.helpers.desk import ROOT, Desk
from tests.helpers.healthy import assert_healthy
from tests.helpers.lab_jobs import await_true
from tests.lab.lab import Lab
from tests.lab.test_components import TWO
from tests.lab.test_training import losses

pytestmark = [pytest.mark.frameworks, pytest.mark.lab, pytest.mark.timeout(1200)]

EXAMPLE = str(ROOT / "examples" / "train_ray.py")
RAY = ("--framework", "ray", "--preflight", "off")
HERE = "  here: {{kind: local, python: {python}, run_dir: runs}}\n"
SMALL = ("--width", "32", "--layers", "1")


@pytest.fixture
def desk(lab: Lab, request: pytest.FixtureRequest) -> Desk:
    desk = desk_of(lab, re.sub(r"\W+", "-", request.node.nodeid)[-40:], "ray")
    with (desk.folder / "clusterkit.yaml").open("a") as config:
        config.write(HERE.format(python=python_of("ray")))
    return desk


def left(job: dict[str, Any]) -> list[str]:
    """Return the command lines of a job's processes, on whatever host."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if Path(job["run_dir"]).name.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
    return found


def log(job: dict[str, Any]) -> str:
    path = Path(job["run_dir"]) / "logs" / "node-0.log"
    return path.read_text() if path.exists() else ""


def started(desk: Desk, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Submit a job; return what is said of it once its driver has begun."""
    job = desk.submit(*RAY, *words, env=env)
    await_true(lambda: "Ray on" in desk.clusterkit("logs", job["job_id"]).stdout, 500)
    return job


def test_a_search_keeps_the_trials_that_have_ended(desk: Desk) -> None:
    script = (str(ROOT / "examples" / "tune_ray.py"), "--steps", "30", "--rates", "1e-3", "1e-2")
    where = ("--cluster", "here", "--nodes", "2", "--gpus-per-node", "1")
    words = (*RAY, *where, *script, *SMALL, "--checkpoint-dir", str(desk.folder / "saved"))
    first, again = (log(desk.submit("--wait", *words, timeout_s=600)) for _ in range(2))
    assert "trials: 2, best lr 0.01" in first
    assert f"resume: search from {desk.folder / 'saved'}" in again
    assert losses(first) == losses(again)


@pytest.mark.parametrize(("cluster", "nodes"), [("lab", 3), ("rack", 3), ("here", 2)])
def test_ray_train_on_a_cluster_of_the_jobs_own(cluster: str, nodes: int, desk: Desk) -> None:
    where = ("--cluster", cluster, "--nodes", str(nodes), "--gpus-per-node", "1")
    done = desk.submit("--wait", *RAY, *where, EXAMPLE, "--steps", "20", timeout_s=900)
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert (done["state"], done["exit_code"]) == ("succeeded", 0), output
    assert f"world size {nodes}" in output
    first, last = losses(output)
    assert last < 0.6 * first
    assert_healthy(done["run_dir"])
    await_true(lambda: not left(done))


TOLD = """
import os, socket, sys, time
import ray

ray.init()

@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def where():
    time.sleep(1)
    return os.environ["CK_NODE_NAME"], os.environ["RAY_AUTH_MODE"]

count = int(ray.cluster_resources()["CPU"])
print("nodes", *sorted({name for name, _ in ray.get([where.remote() for _ in range(count)])}))
print("each", *sorted((n["NodeName"], int(n["Resources"]["CPU"])) for n in ray.nodes()))
print("CPUs", count, "arguments", sys.argv[1:], flush=True)
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.2)
raise SystemExit(7)
"""


def test_two_jobs_and_another_ray_share_the_hosts_and_leave_each_other_alone(desk: Desk) -> None:
    """Each has slots of its own on every host; the other Ray is one that `ray stop` would end."""
    script = desk.write("told.py", TOLD)
    python = str(python_of("ray"))
    ray = [python, "-m", "ray.scripts.scripts", "start", "--head", "--num-cpus=1", "--block"]
    quiet = ["--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=80000000"]
    where = ("--cluster", "rack", "--nodes", "3", "--gpus-per-node", "1", script)
    go = desk.folder / "go"
    env = {"TMPDIR": str(desk.folder), "RAY_TMPDIR": "/tmp/r7"}
    other = desk.lab.popen("n1", [*ray, *quiet, "--temp-dir=/tmp/r7"], env=env)
    try:
        jobs = [started(desk, *where, str(go), str(number)) for number in range(2)]
        await_true(lambda: all("CPUs 3" in log(job) for job in jobs), 300)
        go.touch()
        for number, job in enumerate(jobs):
            done = desk.clusterkit("wait", job["job_id"])
            assert done.returncode == 1
            output = desk.clusterkit("logs", job["job_id"]).stdout
            assert "nodes n1 n2 n3" in output
            assert f"arguments ['{go}', '{number}']" in output
            assert (
                json.loads(desk.clusterkit("status", job["job_id"], "--json").stdout)["exit_code"]
                == 7
            )
            await_true(lambda job=job: not left(job))
        assert other.poll() is None
        assert desk.lab.processes("n1", r"raylet/raylet")
    finally:
        for process in desk.lab.processes("n1", "/tmp/r7"):
            with suppress(ProcessLookupError):  # it went with its parent
                os.kill(process.pid, signal.SIGKILL)
        other.wait(30)


FAILING = """
import os, sys, time
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

def train():
    print("rank", dist.get_rank(), "is on", flush=True)
    if os.environ["CK_NODE_NAME"] == "n3":
        time.sleep(2)
        {end}
    time.sleep(300)

TorchTrainer(train, scaling_config=ScalingConfig(num_workers=3)).fit()
"""


@pytest.mark.parametrize(
    ("cluster", "end", "said"),
    [("lab", "raise ValueError('no such luck')", "no such luck"), ("rack", "os._exit(3)", "")],
)
def test_a_failing_worker_fails_the_job(cluster: str, end: str, said: str, desk: Desk) -> None:
    script = desk.write("failing.py", FAILING.format(end=end))
    where = ("--cluster", cluster, "--nodes", "3", "--gpus-per-node", "1")
    done = desk.submit("--wait", *RAY, *where, script, timeout_s=900)
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert (done["state"], done["exit_code"]) == ("failed", 1), output
    status = json.loads(desk.clusterkit("status", done["job_id"], "--json").stdout)
    assert re.fullmatch(r"n3: rank [012] exited with 1", str(status["reason"])), status
    assert said in output
    await_true(lambda: not left(done))


def raylet(desk: Desk, node: str, job: dict[str, Any]) -> int:
    """Return the Ray of a node of this job."""
    for process in desk.lab.processes(node, r"raylet/raylet"):
        if Path(job["run_dir"]).name.encode() in Path(f"/proc/{process.pid}/environ").read_bytes():
            return process.pid
    raise AssertionError(f"no Ray on {node}")


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_a_dead_ray_fails_the_job_with_the_name_of_its_node(cluster: str, desk: Desk) -> None:
    script = desk.write("told.py", TOLD)
    words = ("--cluster", cluster, "--nodes", "3", "--gpus-per-node", "1", script, "never")
    job = started(desk, *words)
    os.kill(raylet(desk, "n2", job), signal.SIGKILL)
    desk.clusterkit("wait", job["job_id"])
    status = json.loads(desk.clusterkit("status", job["job_id"], "--json").stdout)
    assert (status["state"], status["reason"]) == ("failed", "n2 exited with 1"), log(job)
    await_true(lambda: not left(job))


def test_ray_trains_on_components_with_slots_of_their_own(desk: Desk) -> None:
    done = desk.submit("--wait", *RAY, *TWO, EXAMPLE, "--steps", "20", timeout_s=900)
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    assert "Ray on 3 nodes: n1 n2 n3" in output
    assert "world size 4" in output
    first, last = losses(output)
    assert last < 0.6 * first
    await_true(lambda: not left(done))


def test_a_dead_ray_in_the_second_component_fails_the_job_and_is_named(desk: Desk) -> None:
    job = started(desk, *TWO, desk.write("told.py", TOLD), "never")
    await_true(lambda: "CPUs 4" in log(job), 300)
    assert "each ('n1', 2) ('n2', 1) ('n3', 1)\n" in log(job)
    os.kill(raylet(desk, "n3", job), signal.SIGKILL)
    desk.clusterkit("wait", job["job_id"])
    status = json.loads(desk.clusterkit("status", job["job_id"], "--json").stdout)
    assert (status["state"], status["reason"]) == ("failed", "n3 exited with 1"), log(job)
    await_true(lambda: not left(job))


@pytest.mark.parametrize("cluster", ["lab", "rack", "here"])
def test_nothing_is_left_of_a_cancelled_job(cluster: str, desk: Desk) -> None:
    script = desk.write("told.py", TOLD)
    words = ("--cluster", cluster, "--nodes", "2", "--gpus-per-node", "1", script, "never")
    job = started(desk, *words)
    desk.clusterkit("cancel", job["job_id"])
    desk.clusterkit("wait", job["job_id"])
    assert desk.state(job["job_id"]) == "cancelled"
    await_true(lambda: not left(job))
    if cluster != "lab":  # Slurm's job ids are those of other practice clusters as well
        assert not list(Path("/tmp").glob(f"clusterkit-{job['job_id']}-*"))


def trained_on(job: dict[str, Any], world: int) -> bool:
    """Tell whether so many train together, and whether Ray has kept a checkpoint of theirs."""
    starts = re.split(r"start: .* world size (\d+),", log(job))
    return starts[-2:-1] == [str(world)] and bool(re.search(r"step \d*[3-9]0 ", starts[-1]))


@pytest.mark.parametrize("cluster", ["rack", "lab"])
def test_an_elastic_job_trains_on_without_a_lost_node(cluster: str, desk: Desk) -> None:
    saved = desk.folder / f"saved-{time.time_ns()}"
    keep = ("--checkpoint-dir", str(saved), "--checkpoint-every", "10")
    where = ("--cluster", cluster, "--nodes", "2:3", "--gpus-per-node", "1")
    steps = ("--steps", "2000", "--min-workers", "2", *SMALL, *keep)
    job = desk.submit(*RAY, *where, EXAMPLE, *steps)
    await_true(lambda: trained_on(job, 3), 500)
    desk.lab.kill_host("n3")
    try:
        await_true(lambda: trained_on(job, 2), 500)
        assert "resume: step" in log(job)
        status = json.loads(desk.clusterkit("status", job["job_id"], "--json").stdout)
        assert (status["state"], status["reason"]) == ("running", "without n3")
    finally:
        desk.clusterkit("cancel", job["job_id"])
        desk.clusterkit("wait", job["job_id"])
        desk.lab.up()
    await_true(lambda: not left(job))
