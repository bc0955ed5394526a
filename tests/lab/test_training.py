"""The main job on the practice cluster: every framework trains on three nodes.

Real Slurm, real sshd, real hosts, real launchers; only the GPUs are pretended (CPU ranks on gloo).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.helpers import lab_scripts
from tests.helpers.desk import ROOT, Desk
from tests.helpers.healthy import assert_healthy

pytestmark = [pytest.mark.lab, pytest.mark.train]

EXAMPLES = ROOT / "examples"
STEPS = "20"
HANG_AFTER = "15"
"""A twentieth of what a job gets unless told otherwise: steps, saves and starts are no hang."""

JOBS = {
    "ddp": ("torchrun", "train_ddp.py", ()),
    "zero2": ("deepspeed", "train_deepspeed.py", ("--zero", "2")),
    "horovod": ("horovod", "train_horovod.py", ()),
    "env": ("env", "train_ddp.py", ()),
    "trainer": ("accelerate", "train_trainer.py", ()),
}
STRATEGIES = {
    "fsdp": ("train_fsdp.py",),
    "tp-fsdp": ("train_tp_fsdp.py", "--tp", "2"),
    "deepspeed ZeRO-1": ("train_deepspeed.py", "--zero", "1"),
    "deepspeed ZeRO-3": ("train_deepspeed.py", "--zero", "3"),
}
"""Other examples, by what they say of themselves: how they are started is that of the jobs."""


def losses(output: str) -> tuple[float, float]:
    """Return the first and the last loss of a training log."""
    match = re.search(r"done: loss ([\d.]+) -> ([\d.]+) in", output)
    assert match, output
    return float(match[1]), float(match[2])


def output_of(desk: Desk, framework: str, *words: str) -> str:
    """Run a job that succeeds on three nodes, and return what it printed; no rule finds fault."""
    words = ("--framework", framework, "--nodes", "3", "--hang-after", HANG_AFTER, *words)
    done = desk.clusterkit("submit", "--wait", "--json", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert (document["state"], document["exit_code"]) == ("succeeded", 0)
    assert_healthy(document["run_dir"])
    return desk.clusterkit("logs", document["job_id"]).stdout


@pytest.mark.parametrize(("cluster", "job"), [*(("lab", job) for job in JOBS), ("rack", "ddp")])
def test_training_on_three_nodes(cluster: str, job: str, desk: Desk) -> None:
    framework, script, args = JOBS[job]
    # Of the other launchers two ranks on a node do not train, but add their numbers, or die of it.
    slots = 2 if cluster == "lab" and job in {"ddp", "trainer"} else 1
    words = ("--cluster", cluster, "--gpus-per-node", str(slots))
    output = output_of(desk, framework, *words, str(EXAMPLES / script), "--steps", STEPS, *args)
    assert f"world size {3 * slots}" in output
    first, last = losses(output)
    assert last < 0.6 * first


def test_every_other_strategy_trains_on_three_nodes(desk: Desk) -> None:
    commands = [
        (str(EXAMPLES / script), "--steps", STEPS, *args) for script, *args in STRATEGIES.values()
    ]
    script = desk.write("strategies.py", lab_scripts.in_turn(*commands))
    _, *parts = output_of(desk, "torchrun", script).split("start: framework ")
    assert [part.partition(",")[0] for part in parts] == list(STRATEGIES)
    for part in parts:
        assert "world size 6" in part
        first, last = losses(part)
        assert last < 0.6 * first, part


@pytest.mark.parametrize(
    ("cluster", "framework"),
    [
        *(("rack", framework) for framework in ("accelerate", "deepspeed", "env", "horovod")),
        *(("here", framework) for framework in ("accelerate", "horovod")),
    ],
)
def test_ranks_add_their_numbers(cluster: str, framework: str, desk: Desk) -> None:
    with (desk.folder / "clusterkit.yaml").open("a") as config:
        config.write(f"  here: {{kind: local, python: {sys.executable}, run_dir: runs}}\n")
    script = desk.write("adds.py", lab_scripts.ADDS)
    words = ("--cluster", cluster, "--gpus-per-node", "1", script)
    assert "world size 3, sum 3" in output_of(desk, framework, *words)


@pytest.mark.parametrize("job", ["ddp", "zero2", "horovod"])
def test_the_rendered_sbatch_script_runs_without_clusterkit(job: str, desk: Desk) -> None:
    framework, example, args = JOBS[job]
    script = str(EXAMPLES / example) if job == "ddp" else desk.write("adds.py", lab_scripts.ADDS)
    words = ("--framework", framework, "--nodes", "3", script, "--steps", "10")
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
    if job == "ddp":
        first, last = losses(output)
        assert last < first
    else:
        assert "world size 6, sum 15" in output


def test_four_slots_on_two_nodes_hold_six_horovod_ranks(desk: Desk) -> None:
    # Horovod's own launcher would start eight.
    words = ("--framework", "horovod", "--nodes", "2", "--gpus-per-node", "4", "--processes", "6")
    # Six import torch at once, and the first would wait for the last for 30 s.
    patient = ("--env", "HOROVOD_GLOO_TIMEOUT_SECONDS=300")
    script = desk.write("adds.py", lab_scripts.ADDS)
    done = desk.clusterkit("submit", "--wait", "--json", *words, *patient, script)
    assert done.returncode == 0, done.stdout + done.stderr
    output = desk.clusterkit("logs", json.loads(done.stdout)["job_id"]).stdout
    assert "world size 6, sum 15" in output


RPC = """
import os
import torch.distributed.rpc as rpc

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
interface = os.environ["GLOO_SOCKET_IFNAME"]
options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=60)
os.environ["TP_SOCKET_IFNAME"] = interface
rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world, rpc_backend_options=options)
if rank == 0:
    squares = [rpc.rpc_sync(f"rank{other}", pow, args=(other, 2)) for other in range(1, world)]
    print("sum", sum(squares))
rpc.shutdown()
"""


def test_rpc_scripts_run_under_torchrun(desk: Desk) -> None:
    script = desk.write("rpc.py", RPC)
    done = desk.submit("--wait", "--framework", "torchrun", "--nodes", "3", script)
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    assert "sum 55" in output


def test_horovodrun_over_ssh_by_hand(desk: Desk) -> None:
    words = ("hostfile", "--hostlist", "n[1-3]", "--slots", "2", "--format", "horovod")
    (desk.folder / "hostfile").write_text(desk.clusterkit(*words).stdout)
    binaries = Path(sys.executable).parent
    done = desk.lab.run(
        "head",
        [str(binaries / "horovodrun"), "--gloo", "-np", "6", "--hostfile", "hostfile",
         "--network-interfaces", "eth0", sys.executable,
         desk.write("adds.py", lab_scripts.ADDS)],
        cwd=desk.folder,
        env={"OMP_NUM_THREADS": "1"},
        timeout_s=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "world size 6, sum 15" in done.stdout


# torchrun's ranks share a pipe and buffer nothing: a line of several writes is torn by another's.
RANKS = """
import os
os.write(1, f"rank of {os.environ['WORLD_SIZE']}\\n".encode())
"""


def test_an_elastic_job_takes_the_nodes_there_are(desk: Desk) -> None:
    script = desk.write("ranks.py", RANKS)
    done = desk.submit("--wait", "--framework", "torchrun", "--nodes", "2:3", script)
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    ranks = 2 * len(done["nodes"])
    assert ranks in (4, 6)
    assert output.count(f"rank of {ranks}\n") == ranks
