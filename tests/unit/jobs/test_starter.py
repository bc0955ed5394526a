"""The process that submit leaves behind, so that queued jobs start with nobody looking on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.starter import Starter, starter_of
from tests.helpers.command_line import typed_in
from tests.unit.jobs.test_submit_array import CONFIG

TRAIN = """\
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""
"""Ends once the test has written the file that it names."""
SUBMIT = ("submit", "--json", "--framework", "env")

Found = TypeVar("Found")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "clusterkit.yaml").write_text(CONFIG.format(python="python3"))
    (tmp_path / "train.py").write_text(TRAIN)
    yield tmp_path
    typed_in(tmp_path, "cancel", *(str(path) for path in (tmp_path / "runs").glob("*-*")))


def submitted(desk: Path, *words: str) -> dict[str, object]:
    done = typed_in(desk, *SUBMIT, *words)
    assert done.returncode == 0, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return document


def awaited(look: Callable[[], Found], timeout_s: float = 120.0) -> Found:
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def runs_of(document: dict[str, object]) -> list[RunFolder]:
    jobs = document["jobs"]
    assert isinstance(jobs, list)
    return [RunFolder(Path(job["run_dir"])) for job in jobs]


def starter_at_work(run: RunFolder) -> Starter:
    found = awaited(lambda: starter_of(run))
    assert found is not None
    return found


def test_a_sweep_goes_on_with_nobody_watching_also_after_its_starter_was_killed(desk: Path) -> None:
    sweep = submitted(desk, "--array", "file=a,b,c%1", "train.py", "{file}")
    _, second, third = runs_of(sweep)
    starter = starter_at_work(third)
    assert os.getsid(starter.pid) == starter.pid != os.getsid(0), "it outlives the terminal"
    fds = [str(path.readlink()) for path in Path(f"/proc/{starter.pid}/fd").iterdir()]
    assert not [name for name in fds if name.startswith(("pipe:", "socket:", "/dev/pts"))]
    (desk / "a").touch()
    awaited(lambda: not second.queued.exists())
    assert third.queued.exists(), "it waits for the second, which still runs"
    shown = typed_in(desk, "status", str(sweep["array"])).stdout
    assert f"  starter    process {starter.pid} on {starter.host}\n" in shown

    os.kill(starter.pid, signal.SIGKILL)
    awaited(lambda: starter_of(third) is None)
    (desk / "b").touch()
    assert "none is running: clusterkit supervise" in typed_in(desk, "status", third.key).stdout
    assert third.queued.exists()

    last = submitted(desk, "--after", str(sweep["array"]), "train.py", "c")
    run = RunFolder(Path(str(last["run_dir"])))
    other = starter_at_work(run)
    assert other.pid != starter.pid
    final = submitted(desk, "--after", str(last["job_id"]), "train.py", "c")
    assert starter_at_work(run).pid == other.pid, "one at most"
    (desk / "c").touch()
    awaited(lambda: not _lives(other.pid))
    assert not list((desk / "runs").glob(".starter-*.json")), "it ends by itself"
    awaited(RunFolder(Path(str(final["run_dir"]))).ended.exists)
    states = json.loads(typed_in(desk, "status", "--json", "--cluster", "here").stdout)["jobs"]
    assert [job["state"] for job in states] == ["succeeded"] * 5


def _lives(pid: int) -> bool:
    with suppress(OSError):
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return False


def test_why_a_job_cannot_be_started_is_told_and_its_cancel_ends_the_starter(desk: Path) -> None:
    """Its environment, which the job would have, cannot be read any more."""
    first = submitted(desk, "train.py", "a")
    second = submitted(desk, "--after", str(first["job_id"]), "train.py", "a")
    run = RunFolder(Path(str(second["run_dir"])))
    starter = starter_at_work(run)
    run.shell.unlink()
    (desk / "a").touch()
    awaited(lambda: starter_at_work(run).problem)
    shown = typed_in(desk, "status", run.key).stdout
    assert f"  starter    process {starter.pid} on {starter.host}: {second['job_id']} wai" in shown
    typed_in(desk, "cancel", run.key)
    awaited(lambda: not _lives(starter.pid))
