"""Slots of a node: taken at once, held by the kernel, told by name."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterkit.errors import RemoteError
from clusterkit.executors.ssh_slots import Held, SlotsBusy, take

HOLD = """
import os, sys, time
from pathlib import Path
from clusterkit.executors.ssh_slots import take
held = take(2, 3, job="theirs", node="n1", folder=Path(sys.argv[1]))
if sys.argv[2] == "leave":
    if os.fork():
        os._exit(0)
print("held", held.slots, flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "slots"


def mine(wanted: int, folder: Path) -> Held:
    return take(wanted, 3, job="mine", node="n1", folder=folder)


def free(folder: Path) -> bool:
    try:
        mine(3, folder).release()
    except SlotsBusy:
        return False
    return True


def other(folder: Path, how: str = "stay") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), how], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held (0, 1)\n"
    return process


def test_slots_are_taken_from_the_first_and_given_back(folder: Path) -> None:
    first = mine(2, folder)
    assert first.slots == (0, 1)
    second = mine(1, folder)
    assert second.slots == (2,)
    first.release()
    assert mine(2, folder).slots == (0, 1)
    second.release()


def test_taken_slots_are_refused_with_their_owner(folder: Path) -> None:
    with other(folder) as holder:
        with pytest.raises(SlotsBusy) as refused:
            mine(2, folder)
        assert refused.value.message.startswith(
            "2 slots wanted, 1 of 3 free: slots 0,1 held by theirs of "
        )
        assert "--exclude n1" in str(refused.value.hint)
        mine(1, folder).release()  # the refusal has kept none
        holder.kill()
    assert mine(3, folder).slots == (0, 1, 2)


def test_slots_stay_taken_while_a_child_of_their_owner_lives(folder: Path) -> None:
    with other(folder, "leave") as holder:
        holder.wait(10)
        with pytest.raises(SlotsBusy):
            mine(3, folder)
    _kill_sleepers(folder)
    deadline = time.monotonic() + 10
    while not free(folder):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_more_than_there_are_is_refused_with_the_figure(folder: Path) -> None:
    with pytest.raises(RemoteError, match="4 slots are wanted, and it has 3"):
        mine(4, folder)


def test_other_users_may_take_them_too(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        mine(1, folder).release()
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o666}


def test_a_damaged_owner_is_no_hindrance(folder: Path) -> None:
    with other(folder):
        (folder / "slot-0").write_bytes(b"\xff{")
        with pytest.raises(SlotsBusy, match="slot 0 held by a job that did not say who it is"):
            mine(3, folder)
        _kill_sleepers(folder)


def _kill_sleepers(folder: Path) -> None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in words:
            os.kill(int(path.parent.name), 9)
