"""Submissions that are struck at any moment: no job is lost, and none runs twice.

With CLUSTERKIT_FAULT_ROUNDS=10 (and more) the moments lie closer together.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.desk import Desk
from tests.helpers.lab_jobs import await_true
from tests.lab import Lab

ROUNDS = int(os.environ.get("CLUSTERKIT_FAULT_ROUNDS", "2"))
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300 * max(2, ROUNDS))]
STOPPED_S = 30.0 if ROUNDS > 2 else 12.0
"""Longer than sbatch waits for an answer (MessageTimeout, 10 s)."""
SETTLED_S = 200.0


class Struck:
    """A desk whose submissions are struck; its jobs wait in the queue for an hour."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.script = desk.write("never.py", "")
        self.home = {"HOME": str(desk.folder)}
        """So that no jobs of others are listed."""

    def submitting(self) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "clusterkit", "submit", "--json", "--preflight", "off"]
        argv += ["--framework", "env", "--nodes", "1", "--set", "sbatch.begin=now+1hour"]
        environment = self.desk.environment(**self.home)
        return self.desk.lab.popen(
            "head", [*argv, self.script], cwd=self.desk.folder, env=environment
        )

    def took_s(self) -> tuple[float, float]:
        """Return how long a submission takes that nobody strikes, and until it has a run folder."""
        began = time.monotonic()
        client = self.submitting()
        self.await_run(client)
        made = time.monotonic()
        assert client.wait(120) == 0
        return time.monotonic() - began, made - began

    def await_run(self, client: subprocess.Popen[str]) -> None:
        """Wait until a client that has just begun makes its run folder."""
        before = self.runs()
        while client.poll() is None and self.runs() == before:
            time.sleep(0.01)

    def runs(self) -> set[str]:
        return {str(run) for run in (self.desk.folder / "runs").glob("*")}

    def status(self) -> list[dict[str, Any]]:
        words = ("status", "--json", "--limit", "0", "--cluster", "lab")
        done = self.desk.clusterkit(*words, env=self.home)
        assert "Traceback" not in done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["jobs"]
        return found

    def queued(self) -> dict[str, str]:
        """Return the run folder of each job of this desk that Slurm has, by its id."""
        done = self.desk.lab.run("head", ["squeue", "-h", "-o", "%A|%o"], check=True)
        rows = [line.split("|") for line in done.stdout.splitlines()]
        runs = str(self.desk.folder / "runs")
        return {job: str(Path(path).parent) for job, path in rows if path.startswith(runs)}

    def settle(self) -> tuple[list[dict[str, Any]], float]:
        """Look until something is known of every job; return that, and after how many seconds."""
        began = time.monotonic()
        while True:
            jobs = self.status()
            seconds = time.monotonic() - began
            if not any(self._is_open(job) for job in jobs):
                return jobs, seconds
            assert seconds < SETTLED_S, jobs
            time.sleep(1)

    @staticmethod
    def _is_open(job: dict[str, Any]) -> bool:
        return job["state"] == "unknown" or job["reason"] == "being submitted"

    def check(self, jobs: list[dict[str, Any]]) -> None:
        """Check that every job of Slurm has one run, and every run a job, or is known to have none.

        A run folder without a submission is one of a client that had not begun.
        """
        queued = self.queued()
        assert set(Counter(queued.values()).values()) <= {1}
        assert {job["job_id"]: job["run_dir"] for job in jobs if job["job_id"]} == queued
        for job in jobs:
            if job["job_id"] is None:
                assert job["state"] == "failed"
                assert job["reason"].startswith(("never submitted: ", "never ran: "))


@pytest.fixture
def struck(lab: Lab) -> Iterator[Struck]:
    found = Struck(Desk.of(lab, f"struck-{os.getpid()}-{time.time_ns()}"))
    yield found
    lab.run("head", ["scancel", *found.queued()])


def test_slurmctld_stops_answering_at_any_moment(struck: Struck) -> None:
    (took_s, _), codes, told = struck.took_s(), Counter[int](), Counter[str]()
    (controller,) = struck.desk.lab.processes("head", r"^slurmctld")
    for number in range(ROUNDS):
        with struck.submitting() as client:
            # sbatch comes near the end
            time.sleep(took_s * (0.4 + 0.6 * number / ROUNDS))
            os.kill(controller.pid, signal.SIGSTOP)
            stopped = time.monotonic()
            try:
                told.update(job["state"] for job in struck.status())
                time.sleep(max(0.0, stopped + STOPPED_S - time.monotonic()))
            finally:
                os.kill(controller.pid, signal.SIGCONT)
            codes[client.wait(200)] += 1
    jobs, seconds = struck.settle()
    print(f"exit codes {dict(codes)}; {dict(told)} meanwhile; settled after {seconds:.0f} s")
    assert told.keys() <= {"pending", "unknown"}
    struck.check(jobs)
    accepted = [job for job in jobs if job["job_id"]]
    assert len(accepted) == 1 + ROUNDS


def test_the_client_is_killed_at_any_moment(struck: Struck) -> None:
    """Mostly once there is a run folder: before, nothing is there that could be lost."""
    (took_s, made_s), first, seen = struck.took_s(), Counter[str](), set[str]()
    for number in range(ROUNDS):
        client = struck.submitting()
        if number % 5 == 4:
            time.sleep(made_s * number / ROUNDS)
        else:
            struck.await_run(client)
            time.sleep((took_s - made_s) * number / ROUNDS)
        if number % 2:  # with what it has started, sbatch among it
            os.killpg(client.pid, signal.SIGKILL)
        else:
            for process in struck.desk.lab.processes("head", "-m clusterkit submit"):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        client.wait()
        first.update(
            f"{job['state']} {'with' if job['job_id'] else 'without'} an id: {job['reason']}"
            for job in struck.status()
            if job["run_dir"] not in seen
        )
        seen.update(struck.runs())
    jobs, seconds = struck.settle()
    runs = len(struck.runs())
    ids = sum(bool(job["job_id"]) for job in jobs)
    print(f"{dict(first)}; {runs} runs, {ids} jobs; settled after {seconds:.0f} s")
    struck.check(jobs)
    await_true(lambda: len(struck.queued()) == ids)


def test_a_dry_run_asks_slurm_when_and_where_and_names_the_reservation_in_the_way(
    desk: Desk,
) -> None:
    """The real sbatch and scontrol; nothing is submitted."""
    home = {"HOME": str(desk.folder)}  # so that no jobs of others are listed
    script = desk.write("never.py", "")
    words = ("submit", "--dry-run", "--json", "--framework", "env", "--nodes", "2", script)
    free = json.loads(desk.clusterkit(*words, env=home).stdout)["forecast"]
    assert free["problems"] == []
    assert free["starts_at"] < time.time() + 60
    assert free["nodes"].startswith("n[")
    when = ["starttime=now+1hour", "duration=60", "nodes=ALL", "flags=maint", "users=root"]
    desk.lab.run("head", ["scontrol", "create", "reservation=upkeep", *when], check=True)
    try:
        done = desk.clusterkit("submit", "--dry-run", "--time", "90:00", *words[3:])
    finally:
        desk.lab.run("head", ["scontrol", "delete", "reservation=upkeep"], check=True)
    assert "reservation upkeep takes n[" in done.stderr
    too_long = json.loads(desk.clusterkit(*words[:-1], "--nodes", "90", script).stdout)["forecast"]
    assert too_long["problems"][0]["message"].startswith("90 nodes asked for, but partition")
    listed = desk.clusterkit("status", "--json", "--limit", "0", "--cluster", "lab", env=home)
    assert json.loads(listed.stdout)["jobs"] == []


def test_a_snapshot_is_what_a_job_on_slurm_runs_and_no_later_edit(lab: Lab) -> None:
    """Watched while it waits, runs and ends, in a folder whose name Slurm or a shell may expand."""
    desk = Desk.of(lab, f"#[1-2]{{a,b}} \u00fc-{os.getpid()}")
    desk.write("lib.py", "WORD = 'then'\n")
    script = desk.write(
        "train.py", "import os, lib\nprint(f'{lib.WORD} {os.getcwd()}\\n', end='')\n"
    )
    words = ("--framework", "env", "--nodes", "2", "--preflight", "off", "--snapshot")
    job = desk.submit(*words, "--set", "sbatch.begin=now+1hour", script)
    desk.write("lib.py", "WORD = 'now'\n")
    argv = [sys.executable, "-m", "clusterkit", "status", "--watch", job["job_id"]]
    with lab.popen("head", argv, cwd=desk.folder, env=desk.environment()) as watch:
        assert watch.stdout is not None
        waits = list(iter(watch.stdout.readline, "  limit      10 min\n"))
        lab.run("head", ["scontrol", "update", f"JobId={job['job_id']}", "StartTime=now"])
        over, _ = watch.communicate(timeout=200)
    assert "  pending: waits for the time that it may begin at" in waits[0]
    assert " so far; expected start " in waits[-1]
    assert f"{job['job_id']}  succeeded\n" in over
    assert watch.returncode == 0
    printed = desk.clusterkit("logs", job["job_id"]).stdout.splitlines()
    assert {line.partition("] ")[2] for line in printed} == {f"then {job['run_dir']}/code"}
