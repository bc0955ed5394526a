"""`diagnose --stacks` on the practice cluster: through srun beside the job, and through ssh."""

from __future__ import annotations

import json

import pytest

from tests.helpers.desk import Desk
from tests.helpers.needs import require
from tests.lab.test_jobs import wait_for_output

pytestmark = [pytest.mark.lab]

HANGS = """
import os, time

def late():
    print("rank", os.environ["RANK"], "stands", flush=True)
    time.sleep(600)

def waits():
    print("rank", os.environ["RANK"], "stands", flush=True)
    time.sleep(600)

late() if os.environ["RANK"] == "2" else waits()
"""


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_the_rank_that_the_others_wait_for_is_named(desk: Desk, cluster: str) -> None:
    require("py-spy")
    words = ("--cluster", cluster, "--framework", "env", "--nodes", "3", "--gpus-per-node", "1")
    job = desk.submit(*words, desk.write("hangs.py", HANGS))["job_id"]
    try:
        for rank in range(3):
            wait_for_output(desk, job, f"rank {rank} stands")
        done = desk.clusterkit("diagnose", "--stacks", job, "--json")
    finally:
        desk.clusterkit("cancel", job)
    answer = json.loads(done.stdout)
    assert done.returncode == 0, answer
    told = [(one["ranks"], one["nodes"], one["frames"][0][:6]) for one in answer["stacks"]]
    assert told == [([2], ["n3"], "late ("), ([0, 1], ["n1", "n2"], "waits ")], answer
