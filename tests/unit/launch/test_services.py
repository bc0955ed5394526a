"""`render --for SERVICE`: node.sh learns from the service's own variables which node it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from clusterkit.core.data import read_table
from clusterkit.core.errors import UserError
from clusterkit.core.model import NodeCommand
from clusterkit.launch import render as rendering
from clusterkit.launch.render import render
from tests.helpers.command_line import outcome
from tests.helpers.needs import require
from tests.helpers.paths import ROOT
from tests.helpers.plans import make_cluster, make_plan

HOSTS = json.dumps(["algo-2", "algo-1"])
POOLS = {"workerpool0": ["job-workerpool0-ab-0:2222"], "workerpool1": ["job-workerpool1-ab-0:2222"]}
CHIEF = {"worker": ["a:1"], "chief": ["z:1"]}


def task(pools: Mapping[str, object], kind: str, index: object = 0) -> str:
    return json.dumps(
        {"cluster": pools, "environment": "cloud", "task": {"type": kind, "index": index}}
    )


TOLD = [
    ("sagemaker", {"SM_HOSTS": HOSTS, "SM_CURRENT_HOST": "algo-2"}, "algo-1 algo-2|1|algo-1"),
    (
        "vertex",
        {"CLUSTER_SPEC": task(POOLS, "workerpool1")},
        "job-workerpool0-ab-0 job-workerpool1-ab-0|1|job-workerpool0-ab-0",
    ),
    ("vertex", {"TF_CONFIG": task(CHIEF, "worker")}, "z a|1|z"),
    ("vertex", {"TF_CONFIG": task(CHIEF, "chief", "0")}, "z a|0|z"),
    (
        "azureml",
        {"NODE_RANK": "1", "AZUREML_NODE_COUNT": "2", "MASTER_ADDR": "10.0.0.4"},
        "10.0.0.4 node-1|1|10.0.0.4",
    ),
    (
        "azureml",
        {
            "OMPI_COMM_WORLD_RANK": "0",
            "AZUREML_NODE_COUNT": "2",
            "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000",
        },
        "10.0.0.4 node-1|0|10.0.0.4",
    ),
    (
        "runpod",
        {"NODE_RANK": "1", "NUM_NODES": "2", "PRIMARY_ADDR": "10.65.0.2"},
        "10.65.0.2 node-1|1|10.65.0.2",
    ),
    (
        "kubernetes",
        {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "my-train-1", "CK_SUBDOMAIN": "train"},
        "my-train-0.train my-train-1.train|1|my-train-0.train",
    ),
]
SAGEMAKER = TOLD[0][1]


def run_node(
    service: str, variables: Mapping[str, str], nodes: int = 2
) -> subprocess.CompletedProcess[str]:
    """Run a node script that prints what it was told."""
    says = NodeCommand(argv=("bash", "-c", 'echo "$CK_NODES|$CK_NODE_RANK|$CK_HEAD_ADDR"'))
    plan = make_plan(make_cluster(Path("/tmp")), nodes=nodes, command=says, workdir="/nowhere")
    (file,) = render(plan, service=service)
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(
        ["bash", "-c", file.text], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("service", "variables", "told"), TOLD)
def test_a_node_learns_who_it_is(service: str, variables: dict[str, str], told: str) -> None:
    done = run_node(service, variables)
    assert (done.stdout, done.stderr, done.returncode) == (told + "\n", "", 0)


@pytest.mark.parametrize(("service", "variables", "_"), TOLD)
def test_a_variable_that_is_missing_is_told(
    service: str, variables: dict[str, str], _: str
) -> None:
    for name in variables:
        rest = {other: value for other, value in variables.items() if other != name}
        if name == "HOSTNAME":
            continue  # bash sets it, though not for its children
        done = run_node(service, rest)
        assert done.returncode == 2
        assert name in done.stderr.partition(" not set, which tells ")[0]
        assert "\n  hint: " in done.stderr


@pytest.mark.parametrize(
    ("service", "changed", "said"),
    [
        ("sagemaker", {"SM_HOSTS": "algo-1,algo-2"}, "SM_HOSTS is not JSON: 'algo-1,algo-2'"),
        ("sagemaker", {"SM_HOSTS": "[" * 99999}, "SM_HOSTS is not JSON: '[[["),
        ("sagemaker", {"SM_HOSTS": "{}"}, "SM_HOSTS is no list of names: '{}'"),
        ("sagemaker", {"SM_HOSTS": '["algo-1", 2]'}, "SM_HOSTS is no list of names"),
        ("sagemaker", {"SM_CURRENT_HOST": "x"}, "'x' is none of SM_HOSTS: 'algo-1 algo-2'"),
        ("sagemaker", {"SM_HOSTS": '["algo-2", "$(id)"]'}, "no name of a node: '$(id)'"),
        (
            "sagemaker",
            {"SM_HOSTS": '["algo-2"]'},
            "SageMaker has 1 nodes, and the job was rendered",
        ),
        ("vertex", {"CLUSTER_SPEC": "{"}, "CLUSTER_SPEC is not JSON: '{'"),
        ("vertex", {"CLUSTER_SPEC": "[]"}, "CLUSTER_SPEC does not say which nodes there are"),
        ("vertex", {"CLUSTER_SPEC": task(POOLS, "workerpool9")}, "does not say which nodes"),
        ("vertex", {"CLUSTER_SPEC": task(POOLS, "workerpool1", 1e400)}, "does not say which nodes"),
        ("vertex", {"CLUSTER_SPEC": task({"workerpool0": 3}, "workerpool0")}, "does not say which"),
        ("runpod", {"NODE_RANK": "two"}, "NODE_RANK is no number: 'two'"),
        ("runpod", {"NODE_RANK": "2"}, "node 2 of 2: RunPod says of this node what cannot be"),
        ("runpod", {"NUM_NODES": "3"}, "hint: render it again with --nodes 3"),
        (
            "kubernetes",
            {"HOSTNAME": "my-train-x7k2p"},
            "does not end with -1, as names of",
        ),
        ("kubernetes", {"CK_SUBDOMAIN": "a b"}, "no name of a node: 'my-train-0.a b'"),
    ],
)
def test_a_variable_that_makes_no_sense_is_told(
    service: str, changed: dict[str, str], said: str
) -> None:
    variables = next(given for name, given, _ in TOLD if name == service)
    done = run_node(service, {**variables, **changed})
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr) < 1000


def test_by_hand_the_service_is_not_asked() -> None:
    done = run_node("sagemaker", {"CK_NODES": "a b", "CK_NODE_RANK": "1"})
    assert done.stdout == "a b|1|a\n"


def test_every_service_says_from_where_that_is_known() -> None:
    rows = tuple(read_table(rendering.__file__, "services.tsv"))
    assert {name for name, _, _ in TOLD} == {row["service"] for row in rows}
    assert all(row["source"].startswith(("https://", "aws/")) for row in rows)


@pytest.mark.parametrize(
    ("framework", "service", "said"),
    [
        ("torchrun", "sagemakr", "did you mean 'sagemaker'"),
        ("horovod", "runpod", "needs the names of all nodes"),
    ],
)
def test_what_a_service_cannot_start_is_refused(framework: str, service: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        render(make_plan(make_cluster(Path("/tmp")), framework=framework), service=service)
    assert said in str(refused.value)


def test_a_file_that_a_service_does_not_run_is_told() -> None:
    words = ("--framework", "env", "--nodes", "2", "--only", "sbatch", "--stdout", "train.py")
    code, said, note = outcome("render", "--for", "sagemaker", *words)
    assert (code, said) == (0, "")
    assert note == "no sbatch for sagemaker, which runs node.sh\nhint: --only node\n"


@pytest.mark.train
def test_two_nodes_of_a_service_train(tmp_path: Path) -> None:
    """As SageMaker starts them, but on one machine, where both have the name of it."""
    require("torch")
    words = ("--for", "sagemaker", "--framework", "torchrun", "--nodes", "2", "--stdout")
    verb = [sys.executable, "-m", "clusterkit", "render", *words, "train_ddp.py", "--steps", "20"]
    home = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    here = ROOT / "examples"
    script = subprocess.run(
        verb, env=home, capture_output=True, check=True, cwd=here, text=True
    ).stdout
    hosts = ["127.0.0.1", "127.0.0.2"]
    told = {
        **home,
        "SM_HOSTS": json.dumps(hosts),
        "CK_TOKEN": "0123456789abcdef",
        "CK_PORT": "21730",
    }
    nodes = [
        subprocess.Popen(
            ["bash", "-c", script],
            env={**told, "SM_CURRENT_HOST": host},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=here,
            text=True,
        )
        for host in hosts
    ]
    said = [node.communicate(timeout=240)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "start: framework ddp, world size 2" in said[0]
    assert "in 20 steps" in said[0]
