"""The main job on the practice cluster: every framework trains on three nodes, two ranks each.

Real Slurm, real hosts, real launchers; only the GPUs are pretended (CPU ranks on gloo).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.train]

CHECKOUT = Path(__file__).resolve().parent.parent
EXAMPLES = CHECKOUT / "examples"
STEPS = "30"

CONFIG = """\
default_cluster: lab
clusters:
  lab:
    kind: slurm
    partition: gpu
    gpus_per_node: 2
    time: "10"
    python: {python}
    run_dir: runs
    env: {{DS_ACCELERATOR: cpu}}
"""

JOBS = {
    "ddp": ("torchrun", "train_ddp.py", ()),
    "fsdp": ("torchrun", "train_fsdp.py", ()),
    "zero1": ("deepspeed", "train_deepspeed.py", ("--zero", "1")),
    "zero2": ("deepspeed", "train_deepspeed.py", ("--zero", "2")),
    "zero3": ("deepspeed", "train_deepspeed.py", ("--zero", "3")),
    "horovod": ("horovod", "train_horovod.py", ()),
}

Clusterkit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def desk(lab: Lab, request: pytest.FixtureRequest) -> Path:
    """A folder on the shared file system with a configuration for the lab."""
    name = re.sub(r"\W+", "-", request.node.name)
    folder = lab.shared / "desks" / f"{name}-{Path(request.config.rootpath).name}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "clusterkit.yaml").write_text(CONFIG.format(python=sys.executable))
    return folder


@pytest.fixture
def clusterkit(lab: Lab, desk: Path) -> Clusterkit:
    """Run the command line on the head host, in the desk folder."""

    def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return lab.run(
            "head",
            [sys.executable, "-m", "clusterkit", *words],
            cwd=desk,
            timeout_s=options.pop("timeout_s", 400),
            env={"PYTHONPATH": str(CHECKOUT), "XDG_CONFIG_HOME": str(desk), **options.pop("env", {})},
            **options,
        )

    return run


def losses(output: str) -> tuple[float, float]:
    """Return the first and the last loss of a training log."""
    match = re.search(r"done: loss ([\d.]+) -> ([\d.]+) in", output)
    assert match, output
    return float(match[1]), float(match[2])


@pytest.mark.parametrize("job", JOBS)
def test_training_on_three_nodes(job: str, clusterkit: Clusterkit) -> None:
    framework, script, args = JOBS[job]
    words = ("--framework", framework, "--nodes", "3", str(EXAMPLES / script), "--steps", STEPS)
    done = clusterkit("submit", "--wait", "--json", *words, *args)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert (document["state"], document["exit_code"]) == ("succeeded", 0)
    output = clusterkit("logs", document["job_id"]).stdout
    assert "world size 6" in output
    first, last = losses(output)
    assert last < 0.6 * first


@pytest.mark.parametrize("job", ["ddp", "zero2", "horovod"])
def test_the_rendered_sbatch_script_trains_without_clusterkit(
    job: str, lab: Lab, desk: Path, clusterkit: Clusterkit
) -> None:
    framework, script, args = JOBS[job]
    words = ("--framework", framework, "--nodes", "3", str(EXAMPLES / script), "--steps", "10")
    rendered = clusterkit("render", "--only", "sbatch", "--output", ".", *words, *args)
    assert rendered.returncode == 0, rendered.stderr
    trap = desk / "no-clusterkit"
    trap.mkdir(exist_ok=True)
    (trap / "clusterkit.py").write_text("raise ImportError('clusterkit is not on the nodes')\n")
    done = lab.run(
        "head",
        ["sbatch", "--wait", "--output=by-hand.out", "job.sbatch"],
        cwd=desk,
        env={"PYTHONPATH": str(trap)},
        timeout_s=400,
    )
    output = (desk / "by-hand.out").read_text()
    assert done.returncode == 0, output
    first, last = losses(output)
    assert last < first


def test_four_slots_on_two_nodes_hold_six_horovod_ranks(clusterkit: Clusterkit) -> None:
    # Horovod's own launcher would start eight.
    words = ("--framework", "horovod", "--nodes", "2", "--gpus-per-node", "4", "--processes", "6")
    script = (str(EXAMPLES / "train_horovod.py"), "--steps", "5")
    done = clusterkit("submit", "--wait", "--json", *words, *script)
    assert done.returncode == 0, done.stdout + done.stderr
    output = clusterkit("logs", json.loads(done.stdout)["job_id"]).stdout
    assert "world size 6" in output
