"""Each strategy among the examples, on Slurm and over ssh: trained, killed, resumed."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.helpers.desk import ROOT, Desk
from tests.helpers.lab_jobs import await_true
from tests.lab.test_training import losses

pytestmark = [pytest.mark.frameworks, pytest.mark.lab, pytest.mark.timeout(1200)]

STRATEGIES = {
    "accumulation": ("torchrun", "train_local_sgd.py", "--accumulate", "4"),
    "local SGD": ("torchrun", "train_local_sgd.py", "--average-every", "3"),
    "PowerSGD": ("torchrun", "train_local_sgd.py", "--compress", "powersgd"),
    "FSDP2": ("torchrun", "train_fsdp.py"),
    "HSDP": ("torchrun", "train_hsdp.py", "--replicate", "3", "--accumulate", "2"),
    "recompute, bf16": ("torchrun", "train_hsdp.py", "--recompute", "--bf16", "--offload"),
    "tensor parallel": ("torchrun", "train_tp_fsdp.py", "--tp", "2"),
    "pipeline": ("torchrun", "train_pipeline.py", "--pp", "3", "--layers", "3"),
    "pp x dp x tp": ("torchrun", "train_pipeline.py", "--pp", "3", "--tp", "2", "--layers", "3"),
    "experts": ("torchrun", "train_moe.py", "--experts", "6"),
    "rpc": ("torchrun", "train_rpc.py"),
    "ZeRO-3": ("deepspeed", "train_deepspeed.py", "--zero", "3"),
    "ZeRO-1, bf16": ("deepspeed", "train_deepspeed.py", "--zero", "1", "--precision", "bf16"),
    "DeepSpeed pipeline": ("deepspeed", "train_deepspeed_pipeline.py", "--pp", "2"),
    "fp16 compression": ("horovod", "train_horovod.py", "--compression", "fp16"),
}
ADASUM = ("mpi", "train_horovod.py", "--adasum")
"""For 2, 4, 8, ... ranks, and a Horovod that is built on MPI: test_horovod_mpi.py."""
STEPS = 60
AGAIN = ("--restarts", "1", "--requeue-on", "failure")


@pytest.mark.parametrize("cluster", ["lab", "rack"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_killed_rank_costs_the_steps_since_the_checkpoint(
    strategy: str, cluster: str, desk: Desk
) -> None:
    framework, script, *args = STRATEGIES[strategy]
    learns_though_killed(desk, ("--framework", framework, "--cluster", cluster), "3", script, *args)


def learns_though_killed(
    desk: Desk, flags: tuple[str, ...], nodes: str, script: str, *args: str
) -> None:
    """Train on two ranks of each node, kill one on the second: the next attempt resumes."""
    keep = ("--checkpoint-dir", str(desk.folder / "saved"), "--checkpoint-every", "5")
    words = (*flags, "--nodes", nodes, "--time", "20")
    job = desk.submit(
        *words, *AGAIN, "--gpus-per-node", "2", str(ROOT / "examples" / script), *args, *keep,
        "--steps", str(STEPS), "--log-every", "1",
    )["job_id"]  # fmt: skip

    await_true(lambda: "step 11 loss" in desk.clusterkit("logs", job).stdout, 300)
    ranks = desk.lab.processes("n2", rf"python\S* .*{re.escape(script)} ")
    os.kill(ranks[-1].pid, signal.SIGKILL)
    desk.clusterkit("wait", job, timeout_s=900)
    output = desk.clusterkit("logs", job).stdout
    assert desk.state(job) == "succeeded", output
    resumed = int(re.findall(r"resume: step (\d+) from", output)[-1])
    assert 10 <= resumed < STEPS
    first, last = losses(output)
    assert last < 0.6 * first


def test_uneven_micro_batches_learn_what_even_ones_do(desk: Desk) -> None:
    config = (desk.folder / "clusterkit.yaml").read_text()
    by_node = "case $CK_NODE_RANK in 0) export MICRO_BATCH=2 ;; *) export MICRO_BATCH=6 ;; esac"
    slurm = "    kind: slurm\n"
    desk.write("clusterkit.yaml", config.replace(slurm, f"{slurm}    setup: ['{by_node}']\n"))
    script = (str(ROOT / "examples" / "train_uneven.py"), "--batch-size", "4", "--steps", "8")
    seen = {}
    for cluster, sizes in (("lab", "2 2 6 6"), ("rack", "4 4 4 4")):
        words = ("--cluster", cluster, "--framework", "torchrun", "--nodes", "2", *script)
        job = desk.submit("--wait", "--gpus-per-node", "2", *words, "--log-every", "1")["job_id"]
        output = desk.clusterkit("logs", job).stdout
        assert f"micro batches: {sizes}" in output
        seen[cluster] = re.findall(r"step \d+ loss [\d.]+", output)
    assert len(seen["lab"]) == 8
    assert seen["lab"] == seen["rack"]
