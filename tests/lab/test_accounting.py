"""The end of jobs on a real Slurm, with slurmdbd and without: noticed soon, remembered for long."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterkit.core import files, processes
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers.desk import ROOT, Desk
from tests.helpers.lab_jobs import await_true
from tests.lab import Lab, LabError
from tests.lab.hosts import read_cmdline
from tests.lab.test_lab import machine, members

pytestmark = pytest.mark.lab

EVER_FORGOTTEN_S = 60.0
ONE = ("--framework", "env", "--nodes", "1")
SELDOM = """
from clusterkit.cli import main
from clusterkit.executors.base import Executor
Executor.ask_every_s = 3600
main()
"""
"""The command line, which asks Slurm again only when a node has written something."""
NOTED = """\
#!/bin/sh
/usr/bin/squeue "$@"
code=$?
printf . >>{asked}
exit $code
"""
"""A squeue that notes each of its answers."""


@pytest.fixture(params=["lab", "accounting_lab"])
def any_desk(request: pytest.FixtureRequest) -> Desk:
    """Give a desk on a cluster without accounting, then on one with it."""
    return Desk.of(request.getfixturevalue(request.param), f"end-{os.getpid()}-{time.time_ns()}")


@dataclass(frozen=True)
class Accounted:
    """A job on the cluster with accounting whose command is a line of bash."""

    desk: Desk
    run: RunFolder

    @classmethod
    def submit(cls, desk: Desk, body: str, **options: object) -> Accounted:
        argv = [sys.executable, "-m", "tests.helpers.lab_client", str(desk.folder / "runs"), body]
        words = [*argv, json.dumps({"nodes": 1, **options})]
        done = desk.lab.run("head", words, cwd=ROOT, env=desk.environment(), check=True)
        return cls(desk, RunFolder(Path(done.stdout.strip())))

    @property
    def job_id(self) -> str:
        submission = runfolder.read_submission(self.run)
        assert submission is not None
        assert submission.job_id is not None
        return submission.job_id

    def slurm(self, *argv: str) -> str:
        return self.desk.lab.run("head", [*argv, self.job_id], check=True).stdout.strip()

    def await_start(self) -> None:
        await_true(lambda: self.run.log(0).exists() and bool(self.run.log(0).stat().st_size))

    def kill_worker(self) -> None:
        """Kill the worker, which thereby writes no result."""
        for node in self.desk.lab.nodes:
            for process in self.desk.lab.processes(
                node, rf"clusterkit\.executors\.node .*{self.run.run_id}"
            ):
                processes.send(process.pid, signal.SIGKILL)  # a child may have gone with it

    @property
    def listed(self) -> bool:
        """Whether squeue still knows it."""
        return (
            self.job_id in self.desk.lab.run("head", ["squeue", "-h", "-t", "all", "-o%A"]).stdout
        )

    def rows(self) -> list[str]:
        """Return the states of all rows that sacct has of it."""
        return self.slurm("sacct", "-n", "-X", "-P", "-D", "-o", "State", "-j").splitlines()

    def status(self) -> tuple[str, int | None, str | None]:
        done = self.desk.clusterkit("status", str(self.run.path), "--json")
        document = json.loads(done.stdout)
        return document["state"], document["exit_code"], document["reason"]


@pytest.mark.parametrize(("code", "state"), [(0, "succeeded"), (3, "failed")])
def test_submit_wait_ends_by_what_the_nodes_write(any_desk: Desk, code: int, state: str) -> None:
    script = any_desk.write("ends.py", f"import sys\nsys.exit({code})\n")
    argv = [sys.executable, "-c", SELDOM, "submit", "--wait", "--json", *ONE, script]
    done = any_desk.lab.run(
        "head", argv, cwd=any_desk.folder, env=any_desk.environment(), timeout_s=120
    )
    assert (json.loads(done.stdout)["state"], done.returncode) == (state, int(code != 0))


def test_submit_wait_ends_by_the_first_answer_that_a_job_is_over(any_desk: Desk) -> None:
    script = any_desk.write("never.py", "")
    asked = any_desk.folder / "asked"
    squeue = Path(any_desk.write("squeue", NOTED.format(asked=asked)))
    (any_desk.folder / squeue).chmod(0o755)
    argv = [sys.executable, "-m", "clusterkit", "submit", "--wait", "--json", *ONE]
    argv += ["--set", "sbatch.begin=now+1hour", script]
    environment = any_desk.environment(PATH=f"{any_desk.folder}:{os.environ['PATH']}")
    waiting = any_desk.lab.popen("head", argv, cwd=any_desk.folder, env=environment)
    runs = any_desk.folder / "runs"
    await_true(lambda: any(_job_id(run) for run in runs.glob("*")) and asked.exists())
    job_id = next(_job_id(run) for run in runs.glob("*"))
    any_desk.lab.run("head", ["scancel", str(job_id)], check=True)
    before = asked.stat().st_size
    document = json.loads(waiting.communicate(timeout=60)[0])
    assert asked.stat().st_size - before <= 2, "one may have been on its way"
    assert (document["state"], waiting.returncode) == ("cancelled", 1)


def _job_id(run: Path) -> str | None:
    submission = runfolder.read_submission(RunFolder(run))
    return submission.job_id if submission is not None else None


@pytest.fixture(scope="module")
def forgotten(accounting_lab: Lab) -> Mapping[str, Accounted]:
    """Give jobs that squeue has forgotten, and whose run folders have lost all results."""
    desk = Desk.of(accounting_lab, f"forgotten-{os.getpid()}")
    jobs = {
        "late": Accounted.submit(desk, "echo on; sleep 300"),
        "killed": Accounted.submit(desk, "echo on; sleep 300"),
        "ended": Accounted.submit(desk, "echo on; sleep 300"),
        "succeeded": Accounted.submit(desk, "echo on"),
        "failed": Accounted.submit(desk, "echo on; exit 3"),
        "again": Accounted.submit(
            desk, "echo on; [[ $CK_RESTART_COUNT = 1 ]] || sleep 300", requeue=1
        ),
        "pending": Accounted.submit(desk, "echo on", directives={"begin": "now+1hour"}),
    }
    for name in ("late", "killed", "ended", "again"):
        jobs[name].await_start()
    desk.lab.run("head", ["scontrol", "update", f"JobId={jobs['late'].job_id}", "EndTime=now+1"])
    jobs["killed"].kill_worker()
    for name in ("ended", "pending"):
        jobs[name].slurm("scancel")
    again = jobs["again"]
    again.slurm("scontrol", "requeue")
    await_true(lambda: "PENDING" in again.slurm("squeue", "-h", "-t", "all", "-o%T", "-j"))
    desk.lab.run("head", ["scontrol", "update", f"JobId={again.job_id}", "StartTime=now"])
    await_true(lambda: not any(job.listed for job in jobs.values()), EVER_FORGOTTEN_S)
    for job in jobs.values():
        files.remove_tree(job.run.nodes)
        files.remove_tree(job.run.failures)
    return jobs


@pytest.mark.parametrize(
    ("name", "rows", "status"),
    [
        ("succeeded", ["COMPLETED"], ("succeeded", 0, None)),
        ("failed", ["FAILED"], ("failed", 3, None)),
        # A worker killed by signal 9: the srun of 22.05 then exits with 9, and not with 137.
        ("killed", ["FAILED"], ("failed", 9, None)),
        ("late", ["TIMEOUT"], ("timeout", None, None)),
        ("ended", ["CANCELLED by 0"], ("cancelled", None, None)),
        ("pending", ["CANCELLED by 0"], ("cancelled", None, None)),
        ("again", ["REQUEUED", "COMPLETED"], ("succeeded", 0, None)),
    ],
)
def test_accounting_remembers_what_slurm_forgot(
    forgotten: Mapping[str, Accounted],
    name: str,
    rows: list[str],
    status: tuple[str, int | None, str | None],
) -> None:
    job = forgotten[name]
    assert node_results.read_results(job.run).nodes == ()
    assert job.rows() == rows
    assert job.status() == status


def test_one_listing_takes_many_from_accounting(forgotten: Mapping[str, Accounted]) -> None:
    for job in forgotten.values():
        files.remove(job.run.state)
    desk = forgotten["late"].desk
    listed = json.loads(desk.clusterkit("status", "--json").stdout)["jobs"]
    states = {job["job_id"]: job["state"] for job in listed}
    assert [states[job.job_id] for job in forgotten.values()] == [
        "timeout", "failed", "cancelled", "succeeded", "failed", "succeeded", "cancelled",
    ]  # fmt: skip


def test_a_job_that_runs_in_the_books_only_is_unknown(own_lab: Lab) -> None:
    own_lab.up(nodes=1, accounting=True)
    desk = Desk.of(own_lab, "runaway")
    job = Accounted.submit(desk, "echo on; sleep 300")
    job.await_start()
    await_true(lambda: job.rows() == ["RUNNING"])
    kill(own_lab, "slurmdbd")
    job.slurm("scancel")
    await_true(lambda: not job.listed, EVER_FORGOTTEN_S)
    own_lab.run("head", ["scontrol", "shutdown", "slurmctld"], check=True)
    await_true(lambda: not own_lab.processes("head", "^slurmctld"))
    files.remove(own_lab.layout.host_dir("head") / "state" / "dbd.messages")
    files.remove_tree(job.run.nodes)
    files.remove_tree(job.run.failures)
    own_lab.up()
    assert (job.listed, job.rows()) == (False, ["RUNNING"])
    state, code, reason = job.status()
    assert (state, code) == ("unknown", None)
    assert reason is not None
    assert reason.startswith("Slurm no longer lists it")


def test_up_starts_the_database_again_and_keeps_what_is_in_it(own_lab: Lab) -> None:
    before = machine()
    own_lab.up(nodes=1, accounting=True)
    daemons = "^(mariadbd|slurmdbd|slurmctld)"
    running = own_lab.processes("head", daemons)
    assert [Path(process.argv[0]).name for process in running] == [
        "mariadbd", "slurmdbd", "slurmctld",
    ]  # fmt: skip
    own_lab.up()
    assert own_lab.processes("head", daemons) == running
    with pytest.raises(LabError, match="runs with accounting"):
        own_lab.up(accounting=False)

    rows = ["sacct", "-n", "-X", "-P", "-o", "JobName,State"]
    own_lab.run("head", ["srun", "-J", "kept", "true"], check=True)
    await_true(lambda: own_lab.run("head", rows).stdout == "kept|COMPLETED\n")
    kill(own_lab, "mariadbd")
    kill(own_lab, "slurmdbd")
    assert own_lab.run("head", rows).returncode != 0
    own_lab.up()
    assert own_lab.run("head", rows).stdout == "kept|COMPLETED\n"

    ended = members(own_lab)
    own_lab.down()
    assert not {pid for pid in ended if read_cmdline(pid)}
    assert not own_lab.root.exists()
    assert machine() == before


def kill(cluster: Lab, program: str) -> None:
    """Kill a daemon of the head, and wait until it has gone."""
    for process in cluster.processes("head", f"^{program}"):
        os.kill(process.pid, signal.SIGKILL)
    await_true(lambda: not cluster.processes("head", f"^{program}"))
