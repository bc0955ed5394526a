"""Spark on the practice cluster: a cluster of the job's own, trained on, broken, cancelled."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.environment import desk_with_local, left
from tests.helpers.desk import ROOT, Desk
from tests.helpers.healthy import assert_healthy
from tests.helpers.lab_jobs import await_true
from tests.lab.lab import Lab
from tests.lab.test_training import losses

pytestmark = [pytest.mark.frameworks, pytest.mark.lab, pytest.mark.timeout(900)]

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For eight Java machines on two cores."""
SPARK = (
    *("--framework", "spark", "--env", f"SPARK_DAEMON_JAVA_OPTS={QUICK}"),
    *("--set", f"spark.driver.extraJavaOptions={QUICK}"),
    *("--set", f"spark.executor.extraJavaOptions={QUICK}"),
)
WORKER = "org.apache.spark.deploy.worker.Worker"


@pytest.fixture
def desk(lab: Lab, request: pytest.FixtureRequest) -> Desk:
    return desk_with_local(lab, re.sub(r"\W+", "-", request.node.nodeid), "spark")


def marked(text: str) -> Iterator[str]:
    """Yield the command line of every process with `text` in its environment, on whatever host."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if text.encode() in (folder / "environ").read_bytes():
                yield (folder / "cmdline").read_text().replace("\0", " ")


def daemon(desk: Desk, node: str, kind: str = WORKER) -> int:
    """Return the process of a part of Spark, once it is there."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for process in desk.lab.processes(node):
            if kind in process.argv and Path(process.argv[0]).name == "java":
                return process.pid
        time.sleep(0.5)
    raise AssertionError(f"no {kind} on {node}")


def submitted(desk: Desk, body: str, *words: str) -> dict[str, Any]:
    """Submit a script that continues, and return what is said of it once the script has begun."""
    script = desk.write("program.py", body)
    done = desk.clusterkit("submit", "--json", *SPARK, *words, script)
    assert done.returncode == 0, done.stderr
    job: dict[str, Any] = json.loads(done.stdout)
    deadline = time.monotonic() + 400
    while "program is on" not in desk.clusterkit("logs", job["job_id"]).stdout:
        assert time.monotonic() < deadline, desk.clusterkit("logs", job["job_id"]).stdout
        time.sleep(1)
    return job


SLEEPING = """
import time
from pyspark.sql import SparkSession

context = SparkSession.builder.getOrCreate().sparkContext
print("program is on", context.parallelize(range(9)).sum(), flush=True)
context.parallelize(range(context.defaultParallelism)).foreach(lambda _: time.sleep(600))
"""


@pytest.mark.parametrize(
    ("cluster", "nodes", "slots"), [("lab", 3, 2), ("rack", 3, 1), ("here", 2, 1)]
)
def test_torch_trains_on_spark(cluster: str, nodes: int, slots: int, desk: Desk) -> None:
    where = ("--cluster", cluster, "--nodes", str(nodes), "--gpus-per-node", str(slots))
    script = str(ROOT / "examples" / "train_spark.py")
    done = desk.submit("--wait", *SPARK, *where, script, "--steps", "20", timeout_s=800)
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    assert f"world size {nodes * slots}" in output
    first, last = losses(output)
    assert last < 0.6 * first
    assert_healthy(done["run_dir"])
    await_true(lambda: not left(desk, done["run_dir"]))


TELLING = """
import os, sys
from pyspark.sql import SparkSession

def look(_):
    import beside
    return os.environ["CK_NODE_NAME"], beside.WORD, os.getcwd(), sys.executable

spark = SparkSession.builder.getOrCreate()
context = spark.sparkContext
n = context.defaultParallelism
seen = set(context.parallelize(range(100 * n), n).map(look).collect())
print("memory", spark.conf.get("spark.executor.memory"), "cores", n)
print("nodes", *sorted(node for node, *_ in seen))
print("words", *{word for _, word, *_ in seen})
print("folders", all(folder.startswith("/") and "clusterkit-" in folder for *_, folder, _ in seen))
print("same python", {python for *_, python in seen} == {sys.executable})
print("arguments", sys.argv[1:])
raise SystemExit(7)
"""


def test_a_program_finds_its_cluster_and_its_exit_code_is_the_jobs(desk: Desk) -> None:
    script = desk.write("program.py", TELLING)
    desk.write("beside.py", "WORD = 'found'\n")
    where = ("--cluster", "lab", "--nodes", "3", "--set", "spark.executor.memory=600m")
    done = desk.submit("--wait", *SPARK, *where, script, "--conf", "a b")
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert (done["state"], done["exit_code"]) == ("failed", 7), output
    assert "memory 600m cores 6" in output
    assert "nodes n1 n2 n3\n" in output
    assert "words found\n" in output
    assert "folders True" in output
    assert "same python True" in output
    assert "arguments ['--conf', 'a b']" in output
    kept = Path(done["run_dir"]) / "results" / "spark" / "n1"
    assert (kept / "master.log").exists()
    assert list(kept.glob("app-*-*.stderr"))


def test_a_lost_worker_is_reported_and_ends_the_job(desk: Desk) -> None:
    job = submitted(desk, SLEEPING, "--cluster", "rack", "--nodes", "3", "--gpus-per-node", "1")
    os.kill(daemon(desk, "n2"), signal.SIGKILL)
    done = desk.clusterkit("wait", job["job_id"], "--json")
    document = json.loads(done.stdout)
    assert (document["state"], document["exit_code"]) == ("failed", 137)
    assert document["reason"] == "n2: rank 1 was ended by signal 9"
    status = desk.clusterkit("status", job["job_id"]).stdout
    assert "the Spark worker has ended, exit code 137, on n2" in status
    await_true(lambda: not left(desk, job["run_dir"]))


def test_cancel_leaves_nothing(desk: Desk) -> None:
    job = submitted(desk, SLEEPING, "--cluster", "lab", "--nodes", "3", "--gpus-per-node", "1")
    assert len(left(desk, job["run_dir"])) > 9
    assert desk.clusterkit("cancel", job["job_id"]).returncode == 0
    assert desk.clusterkit("wait", job["job_id"]).returncode != 0
    assert desk.state(job["job_id"]) == "cancelled"
    await_true(lambda: not left(desk, job["run_dir"]))


def test_notices_ahead_of_a_time_limit_end_no_part_of_spark(desk: Desk) -> None:
    """Java takes SIGUSR2 for itself, and crashes where it has not sent it."""
    job = submitted(desk, SLEEPING, "--cluster", "rack", "--nodes", "1", "--gpus-per-node", "1")
    for process in desk.lab.processes("n1"):
        if Path(process.argv[0]).name == "java":
            os.kill(process.pid, signal.SIGUSR2)
            os.kill(process.pid, signal.SIGUSR1)
    time.sleep(3)
    assert desk.state(job["job_id"]) == "running"
    assert desk.clusterkit("cancel", job["job_id"]).returncode == 0
