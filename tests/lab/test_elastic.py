"""Elastic training on the practice cluster: nodes and ranks are lost, and the rest trains on."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers import lab_scripts
from tests.helpers.desk import ROOT, Desk
from tests.helpers.lab_jobs import await_true, in_time

pytestmark = [pytest.mark.lab, pytest.mark.train]

EXAMPLES = ROOT / "examples"
QUICK = ("--set", "torchrun.rdzv-conf=last_call_timeout=5")


class Training:
    """A job that trains until it is told otherwise, saving often."""

    def __init__(
        self, desk: Desk, cluster: str, *words: str, steps: int = 100_000, plain: bool = False
    ) -> None:
        """Train for real, or in a `plain` script that only says what the others say."""
        self.desk = desk
        self.saved = desk.folder / f"saved-{time.time_ns()}"
        script = {"torchrun": "train_ddp.py", "horovod": "train_horovod_elastic.py"}
        framework = words[words.index("--framework") + 1]
        where = ("--cluster", cluster, "--gpus-per-node", "1", "--preflight", "off", *words)
        # Ranks of Horovod would ask each other a thousand times a second, for minutes.
        where += ("--env", "HOROVOD_CYCLE_TIME=20") if framework == "horovod" else ()
        keep = ("--checkpoint-dir", str(self.saved), "--checkpoint-every", "2")
        size = ("--width", "32", "--layers", "1", "--steps", str(steps))
        text = lab_scripts.TRAINS if plain else lab_scripts.slowly(EXAMPLES / script[framework])
        said = desk.submit(*where, desk.write(script[framework], text), *size, *keep)
        self.run = RunFolder(Path(said["run_dir"]))

    def log(self) -> str:
        return self.run.log(0).read_text() if self.run.log(0).exists() else ""

    def await_training(self, nodes: int, *, after: int = 0) -> int:
        """Wait until so many nodes train together; return how long the log is then."""

        def trains() -> bool:
            starts = re.split(r"start: .* world size (\d+),", self.log()[after:])
            return starts[-2:-1] == [str(nodes)] and bool(re.search(r"step \d+0 ", starts[-1]))

        await_true(trains, 90)
        return len(self.log())

    def rank(self, node: str) -> int:
        """Return the process id of the rank on a node."""
        found = self.desk.lab.processes(node, r"^\S*python\S* -u \S*train_\w+\.py .*--steps")
        return found[0].pid

    def said(self, verb: str = "status") -> tuple[str, str | None]:
        done = self.desk.clusterkit(verb, self.run.run_id, "--json")
        document = json.loads(done.stdout)
        return document["state"], document["reason"]

    def ended(self) -> tuple[str, str | None]:
        return self.said("wait")

    def cancel(self) -> None:
        self.desk.clusterkit("cancel", self.run.run_id)
        assert self.ended()[0] == "cancelled"


@pytest.mark.parametrize("cluster", ["rack", "lab"])
def test_a_killed_rank_is_started_again(cluster: str, desk: Desk) -> None:
    words = ("--framework", "torchrun", "--nodes", "2:3", *QUICK)
    job = Training(desk, cluster, *words, plain=True)
    before = job.await_training(3)
    os.kill(job.rank("n2"), signal.SIGKILL)
    job.await_training(3, after=before)
    assert "resume: step" in job.log()[before:]
    assert job.said() == ("running", None)
    job.cancel()


def test_over_ssh_a_node_without_power_is_left_behind_and_too_few_end_the_job(desk: Desk) -> None:
    job = Training(desk, "rack", "--framework", "torchrun", "--nodes", "2:3", *QUICK, plain=True)
    before = job.await_training(3)
    desk.lab.kill_host("n3")
    try:
        job.await_training(2, after=before)
        assert "resume: step" in job.log()[before:]
        assert job.said() == ("running", "without n3")
        began = time.monotonic()
        desk.lab.kill_host("n2")
        assert job.ended() == ("failed", "n3 no longer answers")
        assert in_time(desk.lab, time.monotonic() - began, within_s=60)
    finally:
        desk.lab.up()


def test_on_slurm_a_node_without_power_is_left_behind_and_the_job_succeeds(desk: Desk) -> None:
    job = Training(desk, "lab", "--framework", "torchrun", "--nodes", "2:3", *QUICK, steps=150)
    before = job.await_training(3)
    desk.lab.kill_host("n3")
    try:
        job.await_training(2, after=before)
        assert job.said() == ("running", "without n3")
        assert job.ended() == ("succeeded", "without n3")
        assert "done: loss" in job.log()
    finally:
        desk.lab.up()


def test_horovod_trains_on_without_a_killed_rank_and_takes_its_node_back(desk: Desk) -> None:
    job = Training(desk, "lab", "--framework", "horovod", "--nodes", "2:3")
    before = job.await_training(3)
    os.kill(job.rank("n2"), signal.SIGKILL)
    before = job.await_training(2, after=before)
    job.await_training(3, after=before)
    assert "resume: step" in job.log()[before:]
    job.cancel()


@pytest.mark.parametrize("cluster", ["rack", "lab"])
def test_horovod_ends_well_without_a_lost_node(cluster: str, desk: Desk) -> None:
    job = Training(desk, cluster, "--framework", "horovod", "--nodes", "2:3", steps=80)
    before = job.await_training(3)
    desk.lab.kill_host("n3")
    try:
        job.await_training(2, after=before)
        assert "lost n3" in job.log()
        assert job.ended() == ("succeeded", "without n3")
        assert "done: loss" in job.log()
    finally:
        desk.lab.up()


def test_over_ssh_a_job_starts_without_a_node_whose_slots_are_taken(desk: Desk) -> None:
    config = desk.folder / "clusterkit.yaml"
    config.write_text(config.read_text().replace("n[1-3]", "n3,n1,n2"))
    script = desk.write("ranks.py", "import os, time; print('of', os.environ['WORLD_SIZE'])\n")
    holder = desk.write("hold.py", "import time; time.sleep(300)\n")
    words = ("--cluster", "rack", "--preflight", "off", "--framework", "torchrun")
    held = desk.submit(*words, "--nodes", "1", holder)
    done = desk.clusterkit("submit", "--wait", *words, "--nodes", "2:3", script)
    assert done.returncode == 0, done.stderr
    assert "left out: n3: 2 slots wanted, 0 of 2 free: slots 0,1 held by hold-" in done.stderr
    assert "of 4" in desk.clusterkit("logs", "latest").stdout
    refused = desk.clusterkit("submit", *words, "--nodes", "3:4", script)
    assert refused.returncode == 2
    desk.clusterkit("cancel", held["job_id"])
    desk.clusterkit("wait", held["job_id"])


def test_over_ssh_the_loss_of_the_first_node_ends_the_job_and_is_named(desk: Desk) -> None:
    job = Training(desk, "rack", "--framework", "torchrun", "--nodes", "2:3", *QUICK, plain=True)
    job.await_training(3)
    desk.lab.kill_host("n1")
    try:
        state, reason = job.ended()
        assert state == "failed"
        assert str(reason).startswith("n1 no longer answers")
    finally:
        desk.lab.up()
