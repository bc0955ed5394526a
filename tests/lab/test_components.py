"""Heterogeneous jobs on the practice cluster: components have partitions and slots of their own."""

from __future__ import annotations

import json

import pytest

from tests.helpers.desk import Desk
from tests.lab.test_jobs import SLEEP, leftovers, wait_for_output

pytestmark = pytest.mark.lab

# The head is the one node of `debug`, which is n1.
TWO = (
    "--time", "4",
    "--component", "nodes=1,partition=debug,gpus-per-node=2,gpu-request=none",
    "--component", "nodes=2,gpus-per-node=1,memory=600M",
)  # fmt: skip
TELL = """
import os
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CK_NODE_NAME", "CK_NODES")
print("told", *(os.environ[name] for name in names), flush=True)
"""
GPUS = """
import os
print("gpus", os.environ["RANK"], os.environ.get("CUDA_VISIBLE_DEVICES", "none"), flush=True)
"""
FAILS = """
import os, sys, time
if os.environ["RANK"] == "3":
    sys.exit(7)
time.sleep(300)
"""


def test_torchrun_numbers_nodes_over_components_with_equal_slots(desk: Desk) -> None:
    first = "nodes=1,partition=debug,gpu-request=none"
    words = ("--framework", "torchrun", "--time", "4", "--gpus-per-node", "1")
    script = desk.write("tell.py", TELL)
    done = desk.submit(
        "--wait", *words, "--component", first, "--component", "nodes=2,memory=2G", script
    )
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    told = sorted(line.partition("told ")[2] for line in output.splitlines() if "told " in line)
    assert told == [f"{rank} 0 3 n{rank + 1} n1 n2 n3" for rank in range(3)]


@pytest.mark.parametrize("framework", ["env", "mpi"])
def test_ranks_are_numbered_over_components_with_slots_of_their_own(
    desk: Desk, framework: str
) -> None:
    script = desk.write("tell.py", TELL)
    done = desk.submit("--wait", "--framework", framework, *TWO, script)
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    told = sorted(line.partition("told ")[2] for line in output.splitlines() if "told " in line)
    places = ("0 0 4 n1", "1 1 4 n1", "2 0 4 n2", "3 0 4 n3")
    assert told == [f"{place} n1 n2 n3" for place in places]


def test_a_component_without_gpus_is_told_of_none_of_the_others(desk: Desk) -> None:
    """What Slurm gives the first component is in the environment of the batch script."""
    asks = ("--component", "nodes=1,partition=debug,gpus-per-node=2")
    none = ("--component", "nodes=1,gpus-per-node=1,gpu-request=none")
    script = desk.write("gpus.py", GPUS)
    done = desk.submit("--wait", "--framework", "env", "--time", "4", *asks, *none, script)
    output = desk.clusterkit("logs", done["job_id"]).stdout
    told = sorted(line.partition("gpus ")[2] for line in output.splitlines() if "gpus " in line)
    assert told == ["0 0,1", "1 0,1", "2 none"]


def test_a_rank_that_fails_in_the_second_component_is_named(desk: Desk) -> None:
    script = desk.write("fails.py", FAILS)
    done = desk.clusterkit("submit", "--wait", "--json", "--framework", "env", *TWO, script)
    assert json.loads(done.stdout)["reason"] == "n3: rank 3 exited with 7"
    assert leftovers(desk, script) == {}


def test_commands_reach_all_components_and_cancel_leaves_no_process(desk: Desk) -> None:
    script = desk.write("sleep-here.py", SLEEP)
    job = desk.submit("--framework", "env", *TWO, script)["job_id"]
    wait_for_output(desk, job, "asleep")
    for node in ("n1", "n3"):
        inside = desk.clusterkit("exec", job, "--node", node, "--", "hostname")
        assert inside.stdout == f"{node}\n", inside.stderr
    top = desk.clusterkit("top", job, "--once", "--json")
    assert [one["node"] for one in json.loads(top.stdout)["nodes"]] == ["n1", "n2", "n3"]
    assert top.returncode == 0, top.stdout
    assert desk.clusterkit("cancel", job).returncode == 0
    assert desk.state(job) == "cancelled"
    assert leftovers(desk, script) == {}


def test_a_component_that_is_cancelled_by_itself_ends_the_job_and_is_named(desk: Desk) -> None:
    script = desk.write("sleep-on.py", SLEEP)
    job = desk.submit("--framework", "env", *TWO, script)["job_id"]
    wait_for_output(desk, job, "asleep")
    desk.lab.run("head", ["scancel", f"{job}+1"], check=True)
    done = json.loads(desk.clusterkit("wait", job, "--json").stdout)
    assert (done["state"], done["reason"]) == ("cancelled", "component 2 was cancelled")
    assert leftovers(desk, script) == {}


def test_components_that_together_exceed_the_cluster_are_refused(desk: Desk) -> None:
    script = desk.write("sleep.py", SLEEP)
    two = ("--component", "nodes=2") * 2
    done = desk.clusterkit("submit", "--framework", "env", *two, script)
    assert done.returncode == 2
    assert "2 components ask for 4 nodes of partition gpu, which has 3" in done.stderr
