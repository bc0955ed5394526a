"""Another user of a node, who was there first: folders, names of slots and processes of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterkit.core import files, processes
from clusterkit.core.errors import RemoteError
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh import agent, slots
from clusterkit.executors.ssh.agent_files import NodeAgent
from clusterkit.executors.ssh.layout import CHECK
from clusterkit.executors.ssh.slots import SameMachine, SlotsBusy
from clusterkit.executors.ssh.states import order_to_end
from clusterkit.transport.sync.helper import Helper
from tests.helpers.here import SessionHere

MALLORY = 65_534
pytestmark = pytest.mark.needs("root")
RUN_ID = "job-20261121-120000-abcdef"
PLACE = f".clusterkit/runs/{RUN_ID}"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[SessionHere]:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    one = SessionHere(home)
    yield one
    one.leave()


def receive(session: SessionHere) -> str:
    """Have the node make the folder of a job, as it is before the job's files are sent."""
    helper = Helper(session, sys.executable)
    words = {
        "folder": f"~/{PLACE}",
        "only": False,
        "folder_mode": 0o700,
        "fields": [],
        "entries": [],
    }
    helper.ask("receive", **words)
    return str(helper.answer()["folder"])


@pytest.mark.parametrize("squatted", [".clusterkit", ".clusterkit/runs", PLACE])
def test_a_folder_that_somebody_else_has_made_takes_no_job(
    session: SessionHere, squatted: str
) -> None:
    path = session.home / squatted
    path.mkdir(parents=True)
    os.chown(path, MALLORY, MALLORY)
    with pytest.raises(RemoteError, match="belongs to user 65534"):
        receive(session)
    assert list(path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_that_others_can_write_takes_no_job(session: SessionHere, mode: int) -> None:
    runs = session.home / ".clusterkit" / "runs"
    runs.mkdir(parents=True)
    os.chown(runs, 0, 4321)
    runs.chmod(mode)
    with pytest.raises(RemoteError, match="others can write"):
        receive(session)
    assert list(runs.iterdir()) == []


def test_a_link_of_somebody_else_is_not_followed(session: SessionHere, tmp_path: Path) -> None:
    target = tmp_path / "theirs"
    target.mkdir()
    runs = session.home / ".clusterkit" / "runs"
    runs.mkdir(parents=True)
    (runs / RUN_ID).symlink_to(target)
    os.lchown(runs / RUN_ID, MALLORY, MALLORY)
    with pytest.raises(RemoteError, match="belongs to user 65534"):
        receive(session)
    assert list(target.iterdir()) == []


def test_a_link_in_the_place_of_the_lock_empties_no_file(
    session: SessionHere, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    runs = session.home / ".clusterkit" / "runs"
    runs.mkdir(parents=True)
    (runs / f"{RUN_ID}.lock").symlink_to(precious)
    with pytest.raises(RemoteError, match="symbolic link"):
        receive(session)
    assert precious.read_text() == "mine"


def test_nobody_else_can_enter_what_is_made(session: SessionHere) -> None:
    before = os.umask(0)
    try:
        folder = Path(receive(session))
    finally:
        os.umask(before)
    for path in (folder, folder.parent, folder.parent.parent):
        assert path.stat().st_mode & 0o777 == 0o700, path


@pytest.mark.parametrize("planted", ["folder", "ssh.json"])
def test_a_job_in_the_folder_of_somebody_else_is_not_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], planted: str
) -> None:
    folder = tmp_path / RUN_ID
    folder.mkdir()
    (folder / "ssh.json").write_text("{}")
    os.chown(folder if planted == "folder" else folder / planted, MALLORY, MALLORY)
    assert agent.main([str(folder), CHECK, "n1", "1"]) == agent.REFUSED
    assert "belongs to" in json.loads(capsys.readouterr().out)["refused"]


# Slots and processes ---------------------------------------------------------------------------

_HOLD = """
import os, socket, sys, time
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
held = []
for name in sys.argv[1:]:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.bind(b"\\0" + name.encode("utf-8", "surrogateescape"))
    held.append(one)
print("held", flush=True)
time.sleep(300)
"""


@contextmanager
def squatter(*names: str) -> Iterator[None]:
    """Have another user hold these names."""
    argv = [sys.executable, "-S", "-c", _HOLD, *names]  # who runs it may not read our Python
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            process.kill()


@pytest.fixture
def space(tmp_path: Path) -> str:
    return f"test-{tmp_path.name[-20:]}-{os.getpid()}"


def test_a_name_signed_by_somebody_else_keeps_no_job_from_its_slots(space: str) -> None:
    with squatter(f"{space}-owner 0 root 1 {RUN_ID}"):
        held = slots.take(1, 2, job=RUN_ID, node="n1", space=space)
    assert held.slots == (0,)
    with pytest.raises(SameMachine):
        slots.take(1, 2, job=RUN_ID, node="n1", space=space)
    held.release()


def test_what_others_sign_is_told_whatever_it_is(space: str) -> None:
    odd = (
        f"{space}-owner 0 x 99999999999 later",
        f"{space}-owner 0 {'9' * 40} 9999999999 \x1b]0;owned\x07",
        f"{space}-owner 1 \udcff 0 \udcfe",
        f"{space}-owner \u0663 x 1 digits",
        f"{space}-owner 99999999 x 1 many",
    )
    with (
        squatter(f"{space}-slot 0", f"{space}-slot 1", *odd),
        pytest.raises(SlotsBusy, match="1 slot wanted, 0 of 2 free") as refused,
    ):
        slots.take(1, 2, job=RUN_ID, node="n1", space=space)
    json.dumps({"refused": refused.value.message}).encode()


def test_no_process_but_one_of_the_job_is_ended(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / RUN_ID)
    for argv, ended in (
        (["sleep", "300"], False),
        (["bash", "-c", f"exec -a 'ssh.agent {run.path}' sleep 300"], True),
    ):
        with subprocess.Popen(argv) as process:
            command_line = Path(f"/proc/{process.pid}/cmdline")
            while b"-c\0" in command_line.read_bytes():  # bash has not become it yet
                time.sleep(0.05)
            agent = NodeAgent(
                rank=0,
                node="n1",
                attempt=0,
                pid=process.pid,
                start_time=str(processes.start_time(process.pid)),
                boot_id=processes.boot_id(),
            )
            subprocess.run(["sh", "-c", order_to_end(agent, run)], check=False, timeout=60)
            try:
                assert (process.wait(50 if ended else 1) == -15) is ended
            except subprocess.TimeoutExpired:
                assert not ended
            process.kill()


def test_nothing_in_a_keepers_file_reaches_the_shell(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for field in ("start_time", "boot_id"):
        about = {
            "start_time": "7",
            "boot_id": "b",
            field: f"'; touch {canary}; '\n$(touch {canary})",
        }
        agent = NodeAgent(rank=0, node="n1", attempt=0, pid=os.getpid(), **about)
        script = order_to_end(agent, RunFolder(tmp_path / RUN_ID))
        subprocess.run(["sh", "-c", script], check=False, timeout=60)
    assert not canary.exists()
    assert files.count(tmp_path) == 0
