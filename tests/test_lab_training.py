"""The main job on the practice cluster: every framework trains on three nodes, two ranks each.

Real Slurm, real hosts, real launchers; only the GPUs are pretended (CPU ranks on gloo).
"""

from __future__ import annotations

import json
import re

import pytest

from tests.desk import CHECKOUT, Desk

pytestmark = [pytest.mark.lab, pytest.mark.train]

EXAMPLES = CHECKOUT / "examples"
STEPS = "30"

JOBS = {
    "ddp": ("torchrun", "train_ddp.py", ()),
    "fsdp": ("torchrun", "train_fsdp.py", ()),
    "zero1": ("deepspeed", "train_deepspeed.py", ("--zero", "1")),
    "zero2": ("deepspeed", "train_deepspeed.py", ("--zero", "2")),
    "zero3": ("deepspeed", "train_deepspeed.py", ("--zero", "3")),
    "horovod": ("horovod", "train_horovod.py", ()),
}

def losses(output: str) -> tuple[float, float]:
    """Return the first and the last loss of a training log."""
    match = re.search(r"done: loss ([\d.]+) -> ([\d.]+) in", output)
    assert match, output
    return float(match[1]), float(match[2])


@pytest.mark.parametrize("job", JOBS)
def test_training_on_three_nodes(job: str, desk: Desk) -> None:
    framework, script, args = JOBS[job]
    words = ("--framework", framework, "--nodes", "3", str(EXAMPLES / script), "--steps", STEPS)
    done = desk.clusterkit("submit", "--wait", "--json", *words, *args)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert (document["state"], document["exit_code"]) == ("succeeded", 0)
    output = desk.clusterkit("logs", document["job_id"]).stdout
    assert "world size 6" in output
    first, last = losses(output)
    assert last < 0.6 * first


@pytest.mark.parametrize("job", ["ddp", "zero2", "horovod"])
def test_the_rendered_sbatch_script_trains_without_clusterkit(
    job: str, desk: Desk
) -> None:
    framework, script, args = JOBS[job]
    words = ("--framework", framework, "--nodes", "3", str(EXAMPLES / script), "--steps", "10")
    rendered = desk.clusterkit("render", "--only", "sbatch", "--output", ".", *words, *args)
    assert rendered.returncode == 0, rendered.stderr
    trap = desk.folder / "no-clusterkit"
    trap.mkdir(exist_ok=True)
    (trap / "clusterkit.py").write_text("raise ImportError('clusterkit is not on the nodes')\n")
    done = desk.lab.run(
        "head",
        ["sbatch", "--wait", "--output=by-hand.out", "job.sbatch"],
        cwd=desk.folder,
        env={"PYTHONPATH": str(trap)},
        timeout_s=400,
    )
    output = (desk.folder / "by-hand.out").read_text()
    assert done.returncode == 0, output
    first, last = losses(output)
    assert last < first


def test_four_slots_on_two_nodes_hold_six_horovod_ranks(desk: Desk) -> None:
    # Horovod's own launcher would start eight.
    words = ("--framework", "horovod", "--nodes", "2", "--gpus-per-node", "4", "--processes", "6")
    script = (str(EXAMPLES / "train_horovod.py"), "--steps", "5")
    done = desk.clusterkit("submit", "--wait", "--json", *words, *script)
    assert done.returncode == 0, done.stdout + done.stderr
    output = desk.clusterkit("logs", json.loads(done.stdout)["job_id"]).stdout
    assert "world size 6" in output
