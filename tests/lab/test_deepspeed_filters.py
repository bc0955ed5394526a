"""DeepSpeed's filters on the practice cluster: real Slurm, DeepSpeed's own launcher.

The head is dropped, and one slot of another node: three ranks, on two of three nodes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.helpers import lab_scripts
from tests.helpers.desk import Desk

pytestmark = [pytest.mark.lab, pytest.mark.train]

DEEPSPEED = ("--framework", "deepspeed", "--nodes", "3", "--gpus-per-node", "2")
FILTER = ("--set", "deepspeed.include={2}:1@{1}")

SHOW = """
import os, sys
keys = ("CK_NODE_NAME", "RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "MASTER_ADDR")
# In one piece: the ranks of a node share its log.
sys.stdout.write(" ".join(["seen", *(os.environ[key] for key in keys)]) + "\\n")
"""


def words_for(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a job whose filter drops the first of three nodes."""
    return (*DEEPSPEED, *(word.format(*names) for word in FILTER))


def seen(output: str) -> tuple[set[str], set[str]]:
    """Return what the ranks of SHOW said: node, rank, world size and devices; the head."""
    said = [line.split("seen ", 1)[1].split() for line in output.splitlines() if "seen " in line]
    return {" ".join(words[:4]) for words in said}, {words[4] for words in said}


@contextmanager
def first_gpus_taken(desk: Desk) -> Iterator[None]:
    """Let another job have the first two of the four GPUs of every node."""
    holder = ["sbatch", "--parsable", "--nodes=3", "--gpus-per-node=2", "--output=/dev/null"]
    job_id = desk.lab.run("head", [*holder, "--wrap", "srun sleep 300"]).stdout.strip()
    state = ["squeue", "--noheader", "--format=%T", f"--jobs={job_id}"]
    try:
        deadline = time.monotonic() + 120
        while "RUNNING" not in (said := desk.lab.run("head", state).stdout):
            assert time.monotonic() < deadline, said
            time.sleep(0.2)
        yield
    finally:
        desk.lab.run("head", ["scancel", job_id])


@pytest.mark.parametrize(
    ("cluster", "names", "head"),
    [
        ("lab", ("n1", "n2", "n3"), "n2"),
        ("local", ("node-0", "node-1", "node-2"), "localhost"),
    ],
)
def test_the_ranks_are_on_the_nodes_that_are_left(
    cluster: str, names: tuple[str, ...], head: str, desk: Desk
) -> None:
    script = desk.write("show.py", SHOW)
    python = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "DS_ACCELERATOR": "cpu"}
    where = ("--wait", "--cluster", cluster)
    done = desk.submit(*where, *words_for(names), script, env=python)
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert (done["state"], done["exit_code"], len(done["nodes"])) == ("succeeded", 0, 3), output
    host = "" if cluster == "local" else f" {names[0]}"
    assert f"[node-0{host}] clusterkit: deepspeed.include leaves nothing of {names[0]}" in output
    ranks, heads = seen(output)
    assert ranks == {f"{names[1]} 0 3 0,1", f"{names[1]} 1 3 0,1", f"{names[2]} 2 3 1"}
    assert heads == {desk.lab.run("head", ["getent", "ahostsv4", head]).stdout.split()[0]}


def test_ranks_meet_though_the_head_is_dropped(desk: Desk) -> None:
    script = desk.write("adds.py", lab_scripts.ADDS)
    done = desk.submit("--wait", *words_for(("n1", "n2", "n3")), script)
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert (done["state"], done["exit_code"]) == ("succeeded", 0), output
    assert "world size 3, sum 3" in output


def test_a_rendered_script_filters_what_it_has_beside_another_job(desk: Desk) -> None:
    config = desk.folder / "clusterkit.yaml"
    config.write_text(config.read_text() + "    network_interface: eth0\n")
    script = desk.write("show.py", SHOW)
    words = words_for(("n1", "n2", "n3"))
    rendered = desk.clusterkit("render", "--only", "sbatch", "--output", ".", *words, script)
    assert rendered.returncode == 0, rendered.stderr
    trap = desk.folder / "no-clusterkit"
    trap.mkdir(exist_ok=True)
    (trap / "clusterkit.py").write_text("raise ImportError('clusterkit is not on the nodes')\n")
    with first_gpus_taken(desk):
        done = desk.lab.run(
            "head",
            ["sbatch", "--wait", "--output=by-hand.out", "job.sbatch"],
            cwd=desk.folder,
            env={"PYTHONPATH": str(trap)},
            timeout_s=200,
        )
    output = (desk.folder / "by-hand.out").read_text()
    assert done.returncode == 0, output
    ranks, heads = seen(output)
    assert ranks == {"n2 0 3 2,3", "n2 1 3 2,3", "n3 2 3 3"}
    # Which address the interface of another host has, only that host can tell.
    asked = desk.lab.run("n2", ["ip", "-4", "-o", "addr", "show", "dev", "eth0"]).stdout
    assert heads == {asked.split("inet ", 1)[1].split("/", 1)[0]}


def test_a_host_that_the_job_has_not_is_named_in_its_log(desk: Desk) -> None:
    script = desk.write("show.py", SHOW)
    done = desk.submit("--wait", *words_for(("n1", "n2", "n9")), script)
    assert (done["state"], done["exit_code"]) == ("failed", 2)
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert "there is no host n9 in this job; its hosts: n1 n2 n3" in output
