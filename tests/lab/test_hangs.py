"""Hangs on the practice cluster: real gloo, a data loader whose worker is stopped, evaluations."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from clusterkit.executors.run import hangs
from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers.desk import Desk
from tests.helpers.needs import require
from tests.lab import Lab
from tests.lab.test_jobs import wait_for_output

pytestmark = [pytest.mark.lab]

TRAIN = """
import time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, k):
        return torch.tensor([float(k)])

dist.init_process_group("gloo")
batches = iter(DataLoader(Numbers(), batch_size=1, num_workers=1, prefetch_factor=2))
for step in range(100_000):
    total = next(batches)[0]
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print("step", step, "loss", float(total), flush=True)
    time.sleep(0.1)
"""

EVALUATES = """
import os, time

for step in range(130):
    if os.environ["RANK"] == "0":
        print("step", step, "loss 1.5", flush=True)
    time.sleep(0.1)
    if step % 40 == 30:
        time.sleep(6)
"""


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_whose_data_loader_was_stopped_is_named(lab: Lab, desk: Desk, cluster: str) -> None:
    require("torch", "py-spy")
    words = ("--framework", "torchrun", "--nodes", "3", "--gpus-per-node", "1", "--hang-after", "8")
    submitted = desk.submit("--cluster", cluster, *words, desk.write("train.py", TRAIN))
    job, run = submitted["job_id"], RunFolder(Path(submitted["run_dir"]))
    try:
        wait_for_output(desk, job, "step 40 ")
        workers = [
            process.pid
            for process in lab.processes("n2", r"train\.py")
            if "pt_data_worker" in (comm_of(process.pid) or "")
        ]
        began = time.monotonic()
        os.kill(workers[0], signal.SIGSTOP)
        while hangs.count_stacks(run, 0) < 3:
            assert time.monotonic() < began + 60
            time.sleep(0.5)
        print(f"told after {time.monotonic() - began:.1f} s")
        told = json.loads(desk.clusterkit("status", job, "--json").stdout)
        found = json.loads(desk.clusterkit("diagnose", job, "--json").stdout)
        shown, listed = desk.clusterkit("status", job), desk.clusterkit("status")
    finally:
        desk.clusterkit("cancel", job)
    assert "\n  nodes      n[1-3]\n" in shown.stdout
    assert re.search(r"\n  hangs      for .+ by now; ", shown.stdout)
    assert re.search(rf"\n{job} .* train: hangs for \d+", listed.stdout)
    assert re.fullmatch(r"it hangs: no step for \d+ s, after step \d+", told["reason"])
    assert told["hang"]["by"] == "steps"
    says = found["cause"]["says"]
    assert found["cause"]["rule"] == "hung"
    assert re.search(r"rank 1 is in the data loader, with \S+\[stopped\] below", says), says
    assert "ranks 0,2 wait in all_reduce" in says
    assert (found["cause"]["node"], found["cause"]["rank"]) == ("n2", 1)


def comm_of(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/comm") as stream:  # noqa: PTH123 - of a process
            return stream.read()
    except OSError:
        return None


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_evaluations_of_two_fifths_of_the_least_are_no_hang(desk: Desk, cluster: str) -> None:
    """As those of two minutes are, where the least is five."""
    words = ("--framework", "env", "--nodes", "2", "--gpus-per-node", "1", "--hang-after", "15")
    script = desk.write("evaluates.py", EVALUATES)
    submitted = desk.submit("--cluster", cluster, *words, "--wait", script)
    run = RunFolder(Path(submitted["run_dir"]))
    assert submitted["state"] == "succeeded", submitted
    assert hangs.read_hang(run, 0) is None
