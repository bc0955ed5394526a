"""`--tp` and its like: sizes for the script, and ssh hosts in an order that keeps them near."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clusterkit
from clusterkit.core.data import read_template
from clusterkit.core.model import NodeOrder
from clusterkit.launch.rank_layout.placement import near_first
from tests.helpers.command_line import typed, typed_in

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

ORDER = read_template("scripts/sbatch/order.sh")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusterkit.yaml").write_text(CONFIG)
    (tmp_path / "topology.txt").write_text(TOPOLOGY)
    (tmp_path / "train.py").write_text(
        "import os\n"
        "names = ['RANK', 'TP_SIZE', 'DP_SIZE', 'PP_SIZE', 'MESH_SHAPE', 'MESH_DIM_NAMES']\n"
        # As one piece: Python -u writes words one by one, and between those of two ranks.
        "os.write(1, (' '.join(os.environ[name] for name in names) + '\\n').encode())\n"
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
    words = ("--tp", "8", "--pp", "2", "--hosts", "n[1-8]", "--topology", "topology.txt", "--json")
    layout = typed("layout", *words)
    assert list(plan.node_names) == json.loads(layout.stdout)["hosts"]
    assert plan.node_names != tuple(f"n{k}" for k in range(1, 9))
    without = plan_of(tp=8, pp=2, topology="topology.txt", exclude="n1", spares=1, requeue=1)
    assert set(without.node_names) == {f"n{k}" for k in range(2, 10)}
    assert without.spare_names == ("n10",)


def shell_order(hosts: Sequence[str], order: NodeOrder) -> list[str]:
    words = [str(order.together), " ".join(map(str, order.places))]
    words += [" ".join(switch) for switch in order.switches]
    program = f'{ORDER}\nread -r -a ck_nodes <<<$1; shift; ck_order "$@"; echo ${{ck_nodes[*]}}'
    done = subprocess.run(
        ["bash", "-euc", program, "order", " ".join(hosts), *words],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


@settings(max_examples=25)
@given(st.data())
def test_a_slurm_job_orders_its_nodes_as_the_layout_does(data: st.DataObject) -> None:
    nodes = [f"n{k}" for k in range(12)]
    behind = data.draw(st.lists(st.integers(0, 3), min_size=12, max_size=12))
    switches = tuple(
        tuple(node for node, at in zip(nodes, behind, strict=True) if at == k) for k in range(3)
    )
    hosts = data.draw(st.lists(st.sampled_from(nodes), unique=True, min_size=1))
    places = tuple(data.draw(st.permutations(range(len(hosts)))))
    order = NodeOrder(switches=switches, together=data.draw(st.integers(1, 4)), places=places)
    assert shell_order(hosts, order) == list(near_first(order, hosts))


def test_nodes_that_are_not_as_planned_stay_in_slurms_order() -> None:
    order = NodeOrder(switches=(("n2", "n1"),), together=1, places=(1, 0))
    assert shell_order(["n1", "n2", "n3"], order) == ["n1", "n2", "n3"]


@pytest.mark.usefixtures("desk")
def test_a_slurm_script_says_how_nodes_come_into_order() -> None:
    rendered = clusterkit.render(
        "train.py", framework="torchrun", cluster="a100", nodes=8, tp=8, pp=2,
        topology="topology.txt",
    )  # fmt: skip
    order = rendered.plan.order
    assert order is not None
    assert (order.together, order.places) == (2, (0, 4, 1, 5, 2, 6, 3, 7))
    script = next(file.text for file in rendered.files if file.name == "job.sbatch")
    assert "'n1 n3 n5 n7 n9'" in script
    assert "--distribution=arbitrary" in script
    assert plan_of(cluster="a100", tp=8, pp=2).order is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"tp": 8, "pp": 3}, "do not divide"),
        ({"tp": 0}, "tp"),
        ({"tp": 8, "nodes": "2:4"}, "a fixed number of nodes"),
        ({"tp": 2, "gpus_per_node": [8, 4], "nodes": 2, "framework": "env"}, "equal slots"),
        (
            {
                "cluster": "a100",
                "tp": 8,
                "topology": "topology.txt",
                "framework": "mpi",
                "set": {"mpi.launcher": "srun"},
            },
            "sbatch.switches=1",
        ),
        ({"cluster": "local", "topology": "topology.txt"}, "those of local are all this machine"),
        ({"tp": 8, "topology": "nothing.txt"}, "nothing.txt"),
        ({"tp": 8, "topology": "train.py"}, "names no switch"),
    ],
)
@pytest.mark.usefixtures("desk")
def test_what_cannot_be_laid_out(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(clusterkit.UserError, match=said):
        plan_of(**asked)


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
    done = typed_in(desk, *words)
    assert (done.returncode, done.stderr) == (0, "")
