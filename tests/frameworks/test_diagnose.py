"""Jobs of Ray, Spark and TensorFlow that fail: `diagnose` names the cause and its place."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.frameworks.environment import desk_of
from tests.frameworks.test_ray import FAILING
from tests.frameworks.test_spark import SPARK
from tests.helpers.desk import Desk
from tests.lab.lab import Lab

pytestmark = [pytest.mark.frameworks, pytest.mark.lab, pytest.mark.timeout(900)]

WHERE = ("--preflight", "off", "--cluster", "rack", "--gpus-per-node", "1")


def diagnosed(desk: Desk, *words: str) -> tuple[dict[str, Any], str]:
    """Submit a job that fails; return what is said of it, and all of its output."""
    done = desk.submit("--wait", *WHERE, *words, timeout_s=800)
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "failed", output
    found = desk.clusterkit("diagnose", done["job_id"], "--json")
    assert found.returncode == 1, found.stderr
    document: dict[str, Any] = json.loads(found.stdout)
    return document, json.dumps(document, indent=1) + output


def desk_for(lab: Lab, request: pytest.FixtureRequest, framework: str) -> Desk:
    return desk_of(lab, re.sub(r"\W+", "-", request.node.nodeid)[-40:], framework)


@pytest.mark.parametrize(
    ("end", "rule"),
    [
        ("raise ValueError('no such luck')", "python-exception"),
        ("os.kill(os.getpid(), 9)", "ray-worker-died"),
    ],
)
def test_a_worker_of_ray_that_ends(
    end: str, rule: str, lab: Lab, request: pytest.FixtureRequest
) -> None:
    desk = desk_for(lab, request, "ray")
    script = desk.write("failing.py", FAILING.format(end=end))
    found, all_of_it = diagnosed(desk, "--framework", "ray", "--nodes", "3", script)
    assert (found["cause"]["rule"], found["cause"]["node"]) == (rule, "n3"), all_of_it


CRASHING = """
import os
from pyspark.sql import SparkSession

def work(number):
    if number == 3:
        {end}
    return number

context = SparkSession.builder.getOrCreate().sparkContext
print(context.parallelize(range(9), 3).map(work).sum())
"""


@pytest.mark.parametrize(
    ("end", "rule"),
    [
        ("os._exit(7)", "spark-executor-lost"),
        ("raise ValueError('no such luck')", "python-exception"),
    ],
)
def test_a_task_of_spark_that_ends(
    end: str, rule: str, lab: Lab, request: pytest.FixtureRequest
) -> None:
    desk = desk_for(lab, request, "spark")
    script = desk.write("crashing.py", CRASHING.format(end=end))
    found, all_of_it = diagnosed(desk, *SPARK, "--nodes", "2", script)
    assert found["cause"]["rule"] == rule, all_of_it


MISFIT = """
import json, os
os.environ["TF_CONFIG"] = json.dumps({
    "cluster": {"worker": ["n1:4711", "n2:4711"]}, "task": {"type": "trainer", "index": 0},
})
import tensorflow as tf
tf.distribute.MultiWorkerMirroredStrategy()
"""

LOST = """
import os
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("on", flush=True)
if os.environ["CK_NODE_NAME"] == "n2":
    raise ValueError("no such luck")
with strategy.scope():
    total = tf.Variable(0.0)
for _ in range(100):
    strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.ones(1)))
"""


@pytest.mark.parametrize(
    ("body", "rule", "node"),
    [(MISFIT, "tensorflow-config", "n1"), (LOST, "python-exception", "n2")],
    ids=["config", "lost"],
)
def test_tensorflow_workers_that_end(
    body: str, rule: str, node: str, lab: Lab, request: pytest.FixtureRequest
) -> None:
    desk = desk_for(lab, request, "tensorflow")
    script = desk.write("ending.py", body)
    found, all_of_it = diagnosed(desk, "--framework", "tensorflow", "--nodes", "2", script)
    assert found["cause"]["rule"] == rule, all_of_it
    assert node in found["cause"]["nodes"], all_of_it
