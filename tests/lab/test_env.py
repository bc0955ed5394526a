"""The framework `env` on the practice cluster: scripts that need no launcher, and how they end."""

from __future__ import annotations

import json
import re

import pytest

from tests.helpers import lab_scripts
from tests.helpers.desk import ROOT, Desk
from tests.helpers.lab_jobs import await_true
from tests.lab.test_jobs import SLEEP, leftovers, wait_for_output

pytestmark = [pytest.mark.lab, pytest.mark.train]

PAGE = (ROOT / "docs" / "how-to" / "lightning-and-jax.md").read_text()
SNIPPETS = dict(re.findall(r"```python\n# ([^\n]+)\n(.*?)```", PAGE, re.DOTALL))
THREE = ("--framework", "env", "--nodes", "3")


def output_of(desk: Desk, name: str, *words: str) -> str:
    script = desk.write(f"{name}.py", SNIPPETS[name])
    done = desk.submit("--wait", *words, script)
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    return output


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_rpc_of_the_page(desk: Desk, cluster: str) -> None:
    slots, total = ("2", 55) if cluster == "lab" else ("1", 5)
    words = ("--cluster", cluster, *THREE, "--gpus-per-node", slots)
    assert f"sum {total}" in output_of(desk, "rpc", *words)


def test_data_parallel_of_the_page_is_one_process(desk: Desk) -> None:
    words = ("--framework", "env", "--gpus-per-node", "2", "--set", "env.per-node=1")
    assert output_of(desk, "data-parallel", *words).count("gradient True") == 1


SRUN_STYLE = """
import os
import torch, torch.distributed as dist

rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", rank=rank, world_size=world)
where = [None] * world
mine = (int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_LOCALID"]), os.uname().nodename)
dist.all_gather_object(where, mine)
if rank == 0:
    print("where", where, flush=True)
dist.barrier()
dist.destroy_process_group()  # a process that leaves its threads may die of them
"""


def test_a_script_for_srun_with_a_task_for_each_gpu(desk: Desk) -> None:
    done = desk.submit("--wait", *THREE, desk.write("srun-style.py", SRUN_STYLE))
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    there = [(node, local, f"n{node + 1}") for node in range(3) for local in range(2)]
    assert f"where {there}" in output


TOPOLOGY = """\
SwitchName=core Level=1 Nodes=n[1-3] Switches=s[1-2]
SwitchName=s1 Level=0 Nodes=n[2-3]
SwitchName=s2 Level=0 Nodes=n1
"""


@pytest.mark.parametrize("by_hand", [False, True])
def test_slurms_nodes_are_numbered_by_their_switches(desk: Desk, by_hand: bool) -> None:
    """The first rank is not where the batch script runs: address and port are those of its node."""
    topology = str(desk.write("topology.txt", TOPOLOGY))
    words = (*THREE, "--tp", "2", "--pp", "3", "--topology", topology)
    script = desk.write("meets.py", lab_scripts.MEETS)
    if by_hand:
        rendered = desk.clusterkit("render", *words, "--only", "sbatch", "--stdout", script)
        log = desk.folder / "by-hand.out"
        job = desk.write("job.sbatch", rendered.stdout)
        desk.lab.run("head", ["sbatch", "--wait", f"--output={log}", job], cwd=desk.folder)
        output = log.read_text()
    else:
        done = desk.submit("--wait", *words, script)
        output = desk.clusterkit("logs", done["job_id"]).stdout
        assert done["state"] == "succeeded", output
    names = ("n2", "n3", "n1")
    there = [(node, local, name) for node, name in enumerate(names) for local in range(2)]
    assert f"where {there}" in output


TOLD = """
import os, signal
signal.signal(signal.SIGUSR2, lambda *_: print("told", os.environ["CK_NODE_NAME"], flush=True))
print("ready", flush=True)
signal.pause()
"""


def test_the_notice_to_a_script_by_hand_reaches_its_ranks(desk: Desk) -> None:
    """As Slurm gives it, to the batch script alone; no worker is there to pass it on."""
    words = ("--framework", "env", "--nodes", "2", "--gpus-per-node", "1")
    script = desk.write("told.py", TOLD)
    rendered = desk.clusterkit("render", *words, "--only", "sbatch", "--stdout", script)
    log = desk.folder / "by-hand.out"
    job = desk.write("job.sbatch", rendered.stdout)
    argv = ["sbatch", "--parsable", f"--output={log}", job]
    job_id = desk.lab.run("head", argv, cwd=desk.folder).stdout.strip()
    await_true(lambda: log.exists() and log.read_text().count("ready") == 2)
    notice = ["scancel", "--batch", "--signal=USR2", job_id]
    desk.lab.run("head", notice, check=True)
    await_true(lambda: log.read_text().count("told") == 2)
    assert "User defined" not in log.read_text()


ENDS_SLOWLY = """
import atexit, os, time

if os.environ["RANK"] == "3":
    atexit.register(lambda: (dist.destroy_process_group(), time.sleep(3)))
"""
"""Those that lose rank 3 end before its process does."""


@pytest.mark.parametrize(
    ("cluster", "how", "ending"),
    [("lab", "raise", "exited with 1"), ("rack", "kill", "was ended by signal 9")],
)
def test_the_rank_that_fails_first_is_named(
    desk: Desk, cluster: str, how: str, ending: str
) -> None:
    dies = ENDS_SLOWLY + lab_scripts.DIES_IN_TORCH if how == "raise" else lab_scripts.DIES
    script = desk.write("dies.py", dies)
    done = desk.clusterkit("submit", "--wait", "--json", "--cluster", cluster, *THREE, script, how)
    assert done.returncode == 1
    assert json.loads(done.stdout)["reason"] == f"n2: rank 3 {ending}"
    assert leftovers(desk, script) == {}


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_cancel_leaves_no_process(desk: Desk, cluster: str) -> None:
    script = desk.write("sleep-here.py", SLEEP)
    job = desk.submit("--cluster", cluster, *THREE, script)["job_id"]
    wait_for_output(desk, job, "asleep")
    assert desk.clusterkit("cancel", job).returncode == 0
    assert desk.state(job) == "cancelled"
    assert leftovers(desk, script) == {}
