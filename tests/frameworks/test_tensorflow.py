"""TensorFlow on the practice cluster: trained, compared with its own resolver, broken, ended."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.data import data_dir, peers_program
from tests.frameworks.environment import desk_with_local, left, python_of
from tests.helpers.desk import ROOT, Desk
from tests.helpers.healthy import assert_healthy
from tests.helpers.lab_jobs import await_true
from tests.lab.lab import Lab
from tests.lab.test_training import losses

pytestmark = [pytest.mark.frameworks, pytest.mark.lab, pytest.mark.timeout(900)]

EXAMPLES = ROOT / "examples"
TENSORFLOW = ("--framework", "tensorflow", "--preflight", "off")


@pytest.fixture
def desk(lab: Lab, request: pytest.FixtureRequest) -> Desk:
    return desk_with_local(lab, re.sub(r"\W+", "-", request.node.name), "tensorflow")


def where(cluster: str, nodes: int = 3, slots: int = 1) -> tuple[str, ...]:
    return ("--cluster", cluster, "--nodes", str(nodes), "--gpus-per-node", str(slots))


def finished(desk: Desk, *words: str) -> tuple[dict[str, Any], str]:
    done = desk.submit("--wait", *TENSORFLOW, *words, timeout_s=600)
    return done, desk.clusterkit("logs", done["job_id"]).stdout


@pytest.mark.parametrize(
    ("cluster", "nodes", "words"),
    [
        ("lab", 3, ()),
        ("rack", 3, ("--set", "tensorflow.chief=1")),
        ("here", 2, ()),
    ],
)
def test_workers_train_together(
    cluster: str, nodes: int, words: tuple[str, ...], desk: Desk
) -> None:
    script = (str(EXAMPLES / "train_tensorflow.py"), "--steps", "40")
    done, output = finished(desk, *where(cluster, nodes), *words, *script)
    assert (done["state"], done["exit_code"]) == ("succeeded", 0), output
    assert f"world size {nodes}," in output
    first, last = losses(output)
    assert last < 0.6 * first
    assert_healthy(done["run_dir"])
    assert output.count("done: loss") == 1
    await_true(lambda: not left(desk, done["run_dir"]))


def test_a_model_of_keras_goes_on_from_its_checkpoint(desk: Desk) -> None:
    script = (str(EXAMPLES / "train_tensorflow.py"), "--keras", "--log-every", "5")
    keep = ("--checkpoint-dir", str(desk.folder / "saved"), "--checkpoint-every", "10")
    _, whole = finished(desk, *where("rack", 2), *script, "--steps", "30")
    finished(desk, *where("lab", 2), *script, *keep, "--steps", "20")
    done, output = finished(desk, *where("rack", 2), *script, *keep, "--steps", "30")
    assert (done["state"], done["exit_code"]) == ("succeeded", 0), output
    assert f"resume: step 20 from {desk.folder / 'saved'}" in output
    lost = [re.findall(r"step (30) loss (\S+)", text) for text in (whole, output)]
    assert lost[0] == lost[1] != [], output


def test_a_chief_goes_on_from_its_checkpoint_with_new_servers(desk: Desk) -> None:
    script = (str(EXAMPLES / "train_tensorflow_ps.py"), "--log-every", "5")
    keep = ("--checkpoint-dir", str(desk.folder / "saved"), "--checkpoint-every", "10")
    _, whole = finished(desk, *where("lab"), "--ps", "1", *script, "--steps", "30")
    finished(desk, *where("rack"), "--ps", "1", *script, *keep, "--steps", "20")
    done, output = finished(desk, *where("lab"), "--ps", "1", *script, *keep, "--steps", "30")
    assert (done["state"], done["exit_code"]) == ("succeeded", 0), output
    assert f"resume: step 20 from {desk.folder / 'saved'}" in output
    lost = [re.findall(r"step (30) loss (\S+)", text) for text in (whole, output)]
    assert lost[0] == lost[1] != [], output


@pytest.mark.parametrize("cluster", ["lab", "rack", "here"])
def test_servers_and_workers_are_taken_down_when_their_chief_has_trained(
    cluster: str, desk: Desk
) -> None:
    script = (str(EXAMPLES / "train_tensorflow_ps.py"), "--steps", "40")
    done, output = finished(desk, *where(cluster), "--ps", "1", *script)
    assert (done["state"], done["exit_code"]) == ("succeeded", 0), output
    first, last = losses(output)
    assert last < 0.6 * first
    assert_healthy(done["run_dir"])
    await_true(lambda: not left(desk, done["run_dir"]))


AGREE = """
import os, pathlib, sys, time
import tensorflow as tf

resolvers = tf.distribute.cluster_resolver
slots, *words = sys.argv[1:]
jobs = {role: int(count) for role, count in (word.split("=") for word in words)}
ours = resolvers.TFConfigClusterResolver()
theirs = resolvers.SlurmClusterResolver(
    jobs or None, port_base=int(os.environ["CK_PORT"]) + 1,
    gpus_per_node=int(slots), gpus_per_task=1, auto_set_gpu=False,
)
expected = theirs.cluster_spec().as_dict()
if ours.task_type != "evaluator":
    expected.pop("evaluator", None)
assert ours.cluster_spec().as_dict() == expected, (ours.cluster_spec(), expected)
assert (ours.task_type, ours.task_id) == theirs.get_task_info()
if slots != "1":
    gpu = theirs._gpu_allocation[int(os.environ["SLURM_PROCID"])]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu
pathlib.Path(f"agreed {ours.task_type} {ours.task_id}").touch()
while len(list(pathlib.Path().glob("agreed *"))) < 3 * int(slots):
    time.sleep(0.2)  # or the chief would end all others
"""


@pytest.mark.parametrize(
    ("slots", "options", "jobs", "tasks"),
    [
        (1, (), (), ["worker 0", "worker 1", "worker 2"]),
        (
            2,
            ("per=slot", "ps=2", "evaluator=1"),
            ("chief=1", "ps=2", "evaluator=1", "worker=2"),
            ["chief 0", "evaluator 0", "ps 0", "ps 1", "worker 0", "worker 1"],
        ),
    ],
)
def test_tensorflows_own_resolver_says_the_same(
    slots: int, options: tuple[str, ...], jobs: tuple[str, ...], tasks: list[str], desk: Desk
) -> None:
    script = desk.write("agree.py", AGREE)
    settings = [word for option in options for word in ("--set", f"tensorflow.{option}")]
    done, output = finished(desk, *where("lab", 3, slots), *settings, script, str(slots), *jobs)
    assert done["state"] == "succeeded", output
    agreed = sorted(path.name.removeprefix("agreed ") for path in desk.folder.glob("agreed *"))
    assert agreed == tasks


SHAPES = """
import argparse, json, os, sys
sys.path[:0] = sys.argv[1:]
import clusterkit_ranks, tensorflow_launch as launch
import tensorflow as tf

for slots, jobs in json.loads(sys.stdin.read()):
    hosts = ["t02n13", "t02n41", "t02n43"][: len(slots)]
    world = sum(slots)
    os.environ |= {
        "SLURM_JOB_ID": "7", "OMP_NUM_THREADS": "1", "CK_NODES": " ".join(hosts),
        "CK_SLOTS": " ".join(map(str, slots)), "CK_NNODES": str(len(slots)),
    }
    counts = {role: jobs.get(role, 0) for role in ("chief", "evaluator", "ps")}
    options = argparse.Namespace(processes=world, **counts)
    shares, tasks = clusterkit_ranks.shares_of(world, slots), launch.tasks_of(options, world)
    addresses = [
        f"{host}:{8888 + local}"
        for host, share in zip(hosts, shares, strict=True)
        for local in range(share)
    ]
    for rank in range(world):
        node = next(k for k in range(len(slots)) if rank < sum(slots[: k + 1]))
        local = rank - sum(slots[:node])
        os.environ["CK_NODE_RANK"] = str(node)
        own = launch.environment_of(rank, local, options, shares)
        os.environ |= {name: value for name, value in own.items() if name.startswith("SLURM_")}
        theirs = tf.distribute.cluster_resolver.SlurmClusterResolver(
            jobs, gpus_per_node=max(slots), gpus_per_task=1, auto_set_gpu=False
        )
        expected = theirs.cluster_spec().as_dict()
        ours = json.loads(launch.tf_config(tasks, addresses, rank))
        assert (ours["task"]["type"], ours["task"]["index"]) == theirs.get_task_info()
        if ours["task"]["type"] != "evaluator":
            expected.pop("evaluator", None)
        assert ours["cluster"] == expected, (ours, expected)
        assert own["CUDA_VISIBLE_DEVICES"] == theirs._gpu_allocation[rank]
print("agreed")
"""


def test_every_shape_of_a_step_gives_the_tasks_of_tensorflows_resolver(tmp_path: Path) -> None:
    """The cases of its own tests (slurm_cluster_resolver_test.py), and more."""
    shapes = [
        ([1, 1, 1], {"worker": 3}),
        ([1, 1, 1], {"ps": 1, "worker": 2}),
        ([2, 2, 1], {"ps": 1, "worker": 4}),
        ([2, 2, 1], {"chief": 1, "ps": 1, "worker": 3}),
        ([1, 3, 2], {"chief": 1, "evaluator": 1, "ps": 2, "worker": 2}),
        ([4], {"evaluator": 1, "worker": 3}),
    ]
    templates = data_dir("templates")
    for name, text in peers_program().items():
        (tmp_path / name).write_text(text)
    folders = [str(templates / f) for f in ("frameworks/tensorflow", "programs/ranks")]
    done = subprocess.run(
        [str(python_of("tensorflow")), "-c", SHAPES, *folders, str(tmp_path)],
        input=json.dumps(shapes),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.stdout == "agreed\n", done.stderr


FAILING = """
import os, sys, time
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = strategy.cluster_resolver.task_id
with strategy.scope():
    one = tf.Variable(1.0)

def of_replica():
    return tf.distribute.get_replica_context().all_reduce("sum", tf.identity(one))

@tf.function
def step():
    return strategy.run(of_replica)

for number in range(3000):
    if number == 20 and rank == int(sys.argv[2]):
        if sys.argv[1] == "raise":
            raise ValueError("no such luck")
        os._exit(3)
    if number == 10:
        print("together", flush=True)
    step()
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("cluster", "end", "rank", "code"),
    [("lab", "raise", 1, 1), ("lab", "exit", 0, 3), ("rack", "exit", 2, 3)],
)
def test_a_worker_that_fails_ends_the_job_and_is_named(
    cluster: str, end: str, rank: int, code: int, desk: Desk
) -> None:
    script = desk.write("failing.py", FAILING)
    done, output = finished(desk, *where(cluster), script, end, str(rank))
    assert (done["state"], done["exit_code"]) == ("failed", code), output
    status = json.loads(desk.clusterkit("status", done["job_id"], "--json").stdout)
    assert f"n{rank + 1}: rank {rank} exited with {code}" in status["reason"], status
    assert ("no such luck" in output) == (end == "raise")
    await_true(lambda: not left(desk, done["run_dir"]))


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_nothing_is_left_of_a_cancelled_job(cluster: str, desk: Desk) -> None:
    script = desk.write("failing.py", FAILING)
    job = desk.submit(*TENSORFLOW, *where(cluster), script, "never", "-1")
    await_true(lambda: "together" in desk.clusterkit("logs", job["job_id"]).stdout, 240)
    assert desk.clusterkit("cancel", job["job_id"]).returncode == 0
    desk.clusterkit("wait", job["job_id"])
    assert desk.state(job["job_id"]) == "cancelled"
    await_true(lambda: not left(desk, job["run_dir"]))


EVALUATOR = """
import time
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
role = strategy.cluster_resolver.task_type
print(role, "counts", strategy.num_replicas_in_sync, flush=True)
open(role, "w").close()
if role == "evaluator":
    time.sleep(3000)
while not tf.io.gfile.exists("evaluator"):
    time.sleep(0.2)
"""


def test_an_evaluator_is_no_worker_and_ends_with_them(desk: Desk) -> None:
    script = desk.write("evaluator.py", EVALUATOR)
    done, output = finished(desk, *where("here"), "--set", "tensorflow.evaluator=1", script)
    assert done["state"] == "succeeded", output
    assert output.count("worker counts 2") == 2
    assert output.count("evaluator counts 1") == 1
    await_true(lambda: not left(desk, done["run_dir"]))
