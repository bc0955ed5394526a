"""What submitit's processes get of our plug-in: its cost, and what a checkpoint comes to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from submitit.core.job_environment import JobEnvironment
from submitit.core.utils import DelayedSubmission

from clusterkit.executors.base import REQUEUED
from clusterkit.executors.ssh.submitit import SshJobEnvironment
from tests.helpers.paths import ROOT

SLOW = ("paramiko", "fabric", "invoke", "pydantic", "clusterkit.transport")


class Sleeper:
    """A function as users write them for submitit."""

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps

    def __call__(self) -> int:
        print("asleep", flush=True)
        for _ in range(600):  # a signal that comes just before a sleep is heard after it
            time.sleep(0.1)
        return self.steps

    def checkpoint(self) -> DelayedSubmission:
        return DelayedSubmission(Sleeper(self.steps + 1))


def sleep_for_a_while() -> int:
    print("asleep", flush=True)
    while not Path("go").exists():
        time.sleep(0.1)
    return 7


def interrupted(folder: Path, function: object, *, nodes: int = 1) -> tuple[int, str]:
    """Run a function as a node does, send it SIGUSR2, and return its exit code and its output."""
    pickle = folder / "job_submitted.pkl"
    submission = DelayedSubmission(function)
    submission.set_timeout(60, 3)
    submission.dump(pickle)
    pickle.chmod(0o600)
    given = {"JOB_ID": "job", "NTASKS": nodes, "JOB_NUM_NODES": nodes, "NODEID": 0, "GLOBALID": 0}
    environment = {f"SUBMITIT_SSH_{name}": str(value) for name, value in given.items()}
    here = str(ROOT)
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "clusterkit.executors.ssh.function", str(folder)],
        env={**os.environ, **environment, "SUBMITIT_EXECUTOR": "ssh", "PYTHONPATH": here},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    output = ""
    while "asleep" not in output:
        line = process.stdout.readline()
        assert line, output
        output += line
    process.send_signal(signal.SIGUSR2)
    (folder / "go").touch()
    output += process.communicate(timeout=60)[0]
    return process.returncode, output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "slow"),
    [
        ("clusterkit.executors.ssh.submitit", SLOW),
        ("clusterkit.executors.ssh.agent", SLOW[:-1]),
        ("clusterkit.cli.jobs.logs", SLOW[:3]),
        ("clusterkit.observe.diagnose.facts", SLOW[:3]),
    ],
)
def test_who_reads_files_of_a_job_loads_nothing_of_ssh(module: str, slow: tuple[str, ...]) -> None:
    """The plugin, the agent on each node, and verbs of jobs that are not over ssh."""
    look = f"print(sorted(set({slow}) & {{*sys.modules}}))"
    code = f"import sys, {module}; {look}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_submitit_requires_an_environment_that_requeues() -> None:
    assert SshJobEnvironment._requeue is not JobEnvironment._requeue


def test_a_checkpoint_asks_to_be_started_again(folder: Path) -> None:
    code, output = interrupted(folder, Sleeper())
    assert code == REQUEUED, output
    assert "clusterkit: starting again (3 time limits left)" in output
    kept = DelayedSubmission.load(folder / "job_submitted.pkl")
    assert isinstance(kept.function, Sleeper)
    assert kept.function.steps == 1
    assert not (folder / "job_0_result.pkl").exists()


def test_a_checkpoint_of_several_nodes_says_why_it_is_not_started_again(folder: Path) -> None:
    code, output = interrupted(folder, Sleeper(), nodes=2)
    assert code == 1
    assert "it has 2 nodes, and over ssh only jobs of one node are" in output
    assert str(folder / "job_submitted.pkl") in output


def test_a_function_without_a_checkpoint_works_on(folder: Path) -> None:
    code, output = interrupted(folder, sleep_for_a_while)
    assert code == 0, output
    assert "Bypassing signal SIGUSR2" in output
