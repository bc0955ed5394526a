"""`--tp` and its like: sizes for the script, and ssh hosts in an order that keeps them near."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import clusterkit

CONFIG = """\
clusters:
  a100: {kind: slurm, partition: gpu, gpus_per_node: 8, run_dir: runs}
  rack: {kind: ssh, hosts: "n[1-10]", gpus_per_node: 8, run_dir: runs}
  local: {run_dir: runs}
"""
TOPOLOGY = """\
SwitchName=core Level=1 LinkSpeed=1 Nodes=n[1-10] Switches=odd,even
SwitchName=odd Level=0 LinkSpeed=1 Nodes=n[1,3,5,7,9]
SwitchName=even Level=0 LinkSpeed=1 Nodes=n[2,4,6,8,10]
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusterkit.yaml").write_text(CONFIG)
    (tmp_path / "topology.txt").write_text(TOPOLOGY)
    (tmp_path / "train.py").write_text(
        "import os\n"
        "names = ['RANK', 'TP_SIZE', 'DP_SIZE', 'PP_SIZE', 'MESH_SHAPE', 'MESH_DIM_NAMES']\n"
        "print(*(os.environ[name] for name in names), flush=True)\n"
    )
    return tmp_path


def plan_of(**given: Any) -> Any:
    words = {"framework": "torchrun", "cluster": "rack", "nodes": 8, **given}
    return clusterkit.render("train.py", **words).plan


@pytest.mark.usefixtures("desk")
def test_every_cluster_tells_the_ranks_their_sizes() -> None:
    for cluster in ("rack", "a100"):
        env = plan_of(cluster=cluster, tp=8, pp=2).env
        assert (env["TP_SIZE"], env["PP_SIZE"], env["DP_SIZE"]) == ("8", "2", "4")
        assert (env["MESH_DIM_NAMES"], env["MESH_SHAPE"]) == ("pp,dp,cp,tp", "2,4,1,8")
    assert "TP_SIZE" not in plan_of().env
    assert plan_of(tp=8, env={"TP_SIZE": "mine"}).env["TP_SIZE"] == "mine"


@pytest.mark.usefixtures("desk")
def test_the_plan_has_ssh_hosts_near_those_that_they_need() -> None:
    """As `clusterkit layout` orders them: the stages of a pipeline behind one switch."""
    assert plan_of(tp=8, pp=2).node_names == tuple(f"n{k}" for k in range(1, 9))
    plan = plan_of(tp=8, pp=2, topology="topology.txt")
    layout = subprocess.run(
        [sys.executable, "-m", "clusterkit", "layout", "--tp", "8", "--pp", "2", "--hosts",
         "n[1-8]", "--topology", "topology.txt", "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert list(plan.node_names) == json.loads(layout.stdout)["hosts"]
    assert plan.node_names != tuple(f"n{k}" for k in range(1, 9))
    without = plan_of(tp=8, pp=2, topology="topology.txt", exclude="n1", spares=1, requeue=1)
    assert set(without.node_names) == {f"n{k}" for k in range(2, 10)}
    assert without.spare_names == ("n10",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tp": 8, "pp": 3}, "do not divide"),
        ({"tp": 0}, "tp"),
        ({"tp": 8, "nodes": "2:4"}, "a fixed number of nodes"),
        ({"tp": 2, "gpus_per_node": [8, 4], "nodes": 2, "framework": "env"}, "equal slots"),
        ({"cluster": "a100", "tp": 8, "topology": "topology.txt"}, "sbatch.switches=1"),
        ({"cluster": "local", "topology": "topology.txt"}, "local is local"),
        ({"tp": 8, "topology": "nothing.txt"}, "nothing.txt"),
        ({"tp": 8, "topology": "train.py"}, "names no switch"),
    ],
)
@pytest.mark.usefixtures("desk")
def test_what_cannot_be_laid_out(given: dict[str, Any], said: str) -> None:
    with pytest.raises(clusterkit.UserError, match=said):
        plan_of(**given)


@pytest.mark.usefixtures("desk")
def test_a_layout_that_slows_training_down_is_warned_of_once() -> None:
    with pytest.warns(clusterkit.ClusterkitWarning, match="tp") as caught:
        plan_of(tp=16)
    assert len(caught) == 1


def test_a_job_file_may_hold_it_and_the_ranks_find_it(desk: Path) -> None:
    (desk / "job.yaml").write_text("framework: env\nscript: train.py\ntp: 2\ngpus-per-node: 2\n")
    job = clusterkit.submit(job="job.yaml", cluster="local", nodes=2)
    assert job.wait()["state"] == "succeeded"
    assert sorted(job.logs().split("\n"))[1:] == [
        f"[node-{rank // 2}] {rank} 2 2 1 1,2,1,2 pp,dp,cp,tp" for rank in range(4)
    ]


def test_a_script_may_have_flags_of_these_names(desk: Path) -> None:
    words = ["render", "--stdout", "--framework", "env", "train.py", "--tp", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "clusterkit", *words],
        cwd=desk, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
