"""`clusterkit top` on the practice cluster, as typed: a job through srun, machines through ssh."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.helpers import lab_scripts
from tests.helpers.desk import ROOT, Desk
from tests.helpers.lab_faults import gpus, sshd_hung, sshd_stopped
from tests.helpers.lab_jobs import await_true
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.train]

TRAINING = (
    "--framework", "torchrun", "--nodes", "3", "--gpus-per-node", "1",
    "train_ddp.py", "--steps", "1000000", "--log-every", "1",
)  # fmt: skip
TALKS = """
import os, time
if os.environ["RANK"] == "0":
    print("step 8 loss 2.1 tokens/s 900", flush=True)
    print("step 9 loss 2.0 tokens/s 1024.5", flush=True)
    print("evaluating", flush=True)
time.sleep(300)
"""
ROWS, COLUMNS = 24, 80


class Screen:
    """A terminal of 80x24 on which a command of the head runs."""

    def __init__(self, desk: Desk, *words: str) -> None:
        self.process, self._master = desk.on_terminal(
            *words, term="xterm-256color", size=(ROWS, COLUMNS)
        )
        self._said = b""

    def text(self) -> str:
        """Return all that was drawn so far, without what moves the cursor or colours it."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # the other end has closed
                break
            if not data:
                break
            self._said += data
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._said.decode(errors="replace"))

    def code(self) -> int:
        """Return the exit code; what is drawn meanwhile is read, or the command would wait."""
        await_true(lambda: bool(self.text()) and self.process.poll() is not None)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._master)


@contextmanager
def screen(desk: Desk, *words: str) -> Iterator[Screen]:
    shown = Screen(desk, *words)
    try:
        yield shown
    finally:
        shown.close()


@pytest.fixture
def job(desk: Desk) -> Iterator[str]:
    """Give a training on all three nodes that has told its speed, and end it."""
    desk.write("train_ddp.py", lab_scripts.slowly(ROOT / "examples" / "train_ddp.py"))
    done = desk.submit("--cluster", "lab", *TRAINING)
    name, run = str(done["job_id"]), Path(done["run_dir"])
    log = run / "logs" / "node-0.log"
    try:
        await_true(lambda: log.exists() and "samples/s" in log.read_text(), timeout_s=180)
        yield name
    finally:
        desk.clusterkit("cancel", name)


def look(desk: Desk, *words: str) -> dict[str, Any]:
    done = desk.clusterkit("top", "--json", *words)
    assert done.stdout, done.stderr
    assert "Traceback" not in done.stderr
    return {**json.loads(done.stdout), "code": done.returncode}


def test_a_job_on_slurm_while_it_trains(desk: Desk, job: str) -> None:
    """Through a step in the job, by ssh, and as one of the user's jobs; then live to its end."""
    metrics = desk.folder / "nodes.prom"
    for words in (
        (job, "--prometheus", str(metrics)),
        (job, "--via", "ssh"),
        ("--cluster", "lab"),
    ):
        found = look(desk, *words)
        assert found["code"] == 0, found["remarks"]
        assert [node["node"] for node in found["nodes"]] == ["n1", "n2", "n3"]
        for rank, node in enumerate(found["nodes"]):
            (process,) = [p for p in node["processes"] if p["rank"] == rank and p["threads"] > 1][
                :1
            ]
            assert (process["node_rank"], process["run"][:9]) == (rank, "train_ddp")
            assert node["host"]["cpu_percent"] > 0
        if job in words:
            speed = found["job"]["throughput"]
            assert (speed["unit"], speed["node_rank"]) == ("samples", 0)
            assert speed["rate"] > 0
            assert speed["step"] >= 1
            assert found["job"]["state"] == "running"
    families = text_string_to_metric_families(metrics.read_text())
    seen = {(one.name, one.labels.get("node")): one.value for f in families for one in f.samples}
    assert seen["clusterkit_node_up", "n3"] == 1
    assert seen["clusterkit_job_throughput", None] > 0
    with screen(desk, "top", job, "--interval", "1", "--verbose") as shown:
        # The first steps are drawn, and later ones as well.
        steps = re.compile(r"samples/s at step (\d+)")
        await_true(lambda: len(set(steps.findall(shown.text()))) > 1, timeout_s=180)
        assert "rank 2" in shown.text()
        desk.clusterkit("cancel", job)
        assert shown.code() == 1
        assert "cancelled" in shown.text().rpartition("NODE")[2]
    over = desk.clusterkit("top", job)
    assert over.returncode == 2
    assert "has ended: cancelled" in over.stderr


def test_a_job_over_ssh_with_the_words_of_its_script(desk: Desk) -> None:
    script = desk.write("talk.py", TALKS)
    where = ("--cluster", "rack", "--nodes", "2", "--gpus-per-node", "1")
    done = desk.submit(*where, "--framework", "env", script)
    name, log = str(done["job_id"]), Path(done["run_dir"]) / "logs" / "node-0.log"
    try:
        await_true(lambda: log.exists() and "step 9" in log.read_text(), timeout_s=120)
        found = look(desk, name)
        shown = desk.clusterkit("top", name, "--once", "--verbose").stdout
    finally:
        desk.clusterkit("cancel", name)
    assert (found["code"], [node["node"] for node in found["nodes"]]) == (0, ["n1", "n2"])
    speed = found["job"]["throughput"]
    assert (speed["rate"], speed["unit"], speed["step"]) == (1024.5, "tokens", 9)
    ranks = [{p["rank"] for p in node["processes"]} - {None} for node in found["nodes"]]
    assert ranks == [{0}, {1}]
    assert f"{name}  talk  running  1024.5 tokens/s at step 9" in shown
    assert "rank 1 " in shown


def test_without_a_job_slurm_shows_nothing(desk: Desk) -> None:
    done = desk.clusterkit("top", "--cluster", "lab", "--once")
    assert done.returncode == 2
    assert "no job of yours runs on lab" in done.stderr
    assert "--via ssh" in done.stderr


def test_machines_over_ssh_one_of_them_gone_and_one_sick(
    desk: Desk, lab: Lab, tmp_path: Path
) -> None:
    with sshd_stopped(lab, "n2"), gpus(lab, tmp_path, n3="sick8"):
        found = look(desk, "--cluster", "rack")
        done = desk.clusterkit("top", "--cluster", "rack", "--once")
    assert found["code"] == done.returncode == 1
    well, gone, sick = found["nodes"]
    assert (well["problem"], well["gpus"], sick["problem"]) == (None, [], None)
    assert gone["problem"] == "nothing listens on its SSH port"
    assert [gpu["slowdown"] for gpu in sick["gpus"]][5] == "hardware thermal slowdown"
    assert max(map(len, done.stdout.splitlines())) <= 80
    *_, unknown, fail = done.stdout.splitlines()
    assert unknown == "unknown  n2  does not answer: nothing listens on its SSH port"
    assert fail == "fail     n3  GPU 5: hardware thermal slowdown, 93 C"


def test_a_machine_that_hangs_holds_up_no_other(desk: Desk, lab: Lab) -> None:
    """Without a terminal too, one view follows the other, over connections that stay open."""
    out = desk.folder / "out"
    with sshd_hung(lab, "n2"), out.open("w") as stream:
        words = ["top", "--cluster", "rack", "--interval", "1"]
        process = lab.popen(
            "head",
            [sys.executable, "-m", "clusterkit", *words],
            cwd=desk.folder,
            env=desk.environment(),
            stdout=stream,
        )
        try:
            await_true(lambda: "n2  does not answer: no answer within" in out.read_text())
            logins = sessions(lab)
            before = views(out)
            await_true(lambda: views(out) >= before + 4)
            assert sessions(lab) == logins != set()
            (top,) = lab.processes("head", "clusterkit top --cluster rack")
            os.kill(top.pid, signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    await_true(lambda: not sessions(lab))
    last = out.read_text().rpartition("NODE")[2].splitlines()
    assert re.match(r"n1 +\d+% ", last[1])
    assert re.match(r"n2 +- ", last[2])
    assert re.match(r"n3 +\d+% ", last[3])


def views(out: Path) -> int:
    return out.read_text().count("NODE")


def sessions(lab: Lab) -> set[int]:
    """Return the processes in which the sshd of n1 serves somebody."""
    return {process.pid for process in lab.processes("n1", r"sshd: \w+@notty")}
