"""Slots of a node: taken at once, held by the kernel, told by name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterkit.core.errors import RemoteError
from clusterkit.core.ports import hold
from clusterkit.executors.ssh import slots
from clusterkit.executors.ssh.slots import Held, SlotsBusy, take

HOLD = """
import os, sys, time
from clusterkit.executors.ssh.slots import take
held = take(2, 3, job="theirs", node="n1", space=sys.argv[1])
if sys.argv[2] == "leave":
    if os.fork():
        os._exit(0)
print("held", held.slots, flush=True)
time.sleep(300)
"""


@pytest.fixture
def space(tmp_path: Path) -> str:
    return f"test-{tmp_path.name[-20:]}-{os.getpid()}"


def mine(wanted: int, space: str, job: str = "mine") -> Held:
    return take(wanted, 3, job=job, node="n1", space=space)


def free(space: str) -> bool:
    try:
        mine(3, space).release()
    except SlotsBusy:
        return False
    return True


def other(space: str, how: str = "stay") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, space, how], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held (0, 1)\n"
    return process


def test_slots_are_taken_from_the_first_and_given_back(space: str) -> None:
    first = mine(2, space)
    assert first.slots == (0, 1)
    second = mine(1, space, job="another")
    assert second.slots == (2,)
    first.release()
    assert mine(2, space).slots == (0, 1)
    second.release()


def test_a_machine_with_two_names_is_no_second_node(space: str) -> None:
    long = "a-name-of-sixty-characters-" + "x" * 50
    first = mine(1, space, job=long)
    with pytest.raises(SlotsBusy, match="under another name of the same machine"):
        mine(1, space, job=long)
    first.release()
    mine(1, space, job=long).release()


def test_taken_slots_are_refused_with_their_owner(space: str) -> None:
    with other(space) as holder:
        with pytest.raises(SlotsBusy) as refused:
            mine(2, space)
        assert refused.value.message.startswith(
            "2 slots wanted, 1 of 3 free: slots 0,1 held by theirs of "
        )
        mine(1, space).release()  # the refusal has kept none
        holder.kill()
    assert mine(3, space).slots == (0, 1, 2)


def test_slots_stay_taken_while_a_child_of_their_owner_lives(space: str) -> None:
    with other(space, "leave") as holder:
        holder.wait(50)
        with pytest.raises(SlotsBusy):
            mine(3, space)
    _kill_sleepers(space)
    deadline = time.monotonic() + 50
    while not free(space):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_more_than_there_are_is_refused_with_the_figure(space: str) -> None:
    with pytest.raises(RemoteError, match="4 slots are wanted, and it has 3"):
        mine(4, space)


def test_long_names_are_cut_at_their_beginning(space: str) -> None:
    run = "a" * 60 + "-20261121-101500-4f06f8"
    held = take(1, 1, job=run, node="n1", space=space)
    with pytest.raises(SlotsBusy, match=r"slot 0 held by a*-20261121-101500-4f06f8 of "):
        take(1, 1, job="mine", node="n1", space=space)
    held.release()


def test_who_does_not_say_who_it_is_is_no_hindrance(space: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.bind(f"\0{space}-slot 0")
        with pytest.raises(SlotsBusy, match="slot 0 held by a job that did not say who it is"):
            mine(3, space)
        assert mine(2, space).slots == (1, 2)


def test_of_many_at_once_each_gets_all_or_nothing(
    space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(name: str) -> socket.socket | None:
        held = hold(name)
        time.sleep(0.05 if held and "-slot " in name else 0)  # in which others take the next one
        return held

    monkeypatch.setattr(slots, "hold", slowly)
    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(lambda _: _try_two(space), range(8)))
    assert sum(held is not None for held in kept) == 1


def _try_two(space: str) -> Held | None:
    try:
        return take(2, 3, job="one of many", node="n1", space=space)
    except SlotsBusy:
        return None


def _kill_sleepers(space: str) -> None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if space.encode() in words:
            os.kill(int(path.parent.name), 9)
