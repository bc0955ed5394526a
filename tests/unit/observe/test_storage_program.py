"""The program of `bench storage`, in one process: files, caches, room."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from clusterkit.core.data import data_dir
from tests.helpers.lab_jobs import await_true
from tests.helpers.loading import load

FOLDER = data_dir("templates/programs") / "compute"
GB = 10**9


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    meeting = SimpleNamespace(LATE_S=60.0, Meeting=None, node=lambda: "n1")  # without torch
    monkeypatch.setitem(sys.modules, "clusterkit_meeting", meeting)
    return load(FOLDER / "clusterkit_storage.py")


class Alone:
    """A turn that waits for nobody."""

    def next(self) -> None:
        pass


def test_files_are_written_read_and_gone(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "SMALL_MOST", 5)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    me = program.myself(str(tmp_path))
    assert "error" not in me
    assert me["free"] <= me["total"]
    program.measure(me, 3 << 20, Alone())
    assert (me["one"]["write"]["bytes"], me["all"]["write"]["bytes"]) == (3 << 20, 3 << 19)
    for part in (me["one"], me["all"]):
        assert part["read"]["bytes"] == part["write"]["bytes"]
        assert 0 <= part["write"]["fsync_s"] <= part["write"]["seconds"]
        assert part["read"]["from"] in {"disk", "direct", "memory", "unknown"}
    assert (me["small"]["files"], me["small"]["bytes"]) == (5, 16384)
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_memory_is_known(program: ModuleType, tmp_path: Path) -> None:
    handle = program.unnamed(tmp_path)
    os.write(handle, bytes(1 << 20))
    assert program.resident(handle, 1 << 20) == 1
    blocks = program.Blocks()
    assert blocks.read(handle, 1 << 20, in_memory=True)["from"] == "memory"
    os.close(handle)
    reading, writing = os.pipe()
    assert program.resident(reading, 4096) is None
    os.close(reading)
    os.close(writing)


def test_a_process_that_is_killed_leaves_no_file(tmp_path: Path) -> None:
    text = (
        "import sys, types\n"
        "one = sys.modules['clusterkit_meeting'] = types.ModuleType('clusterkit_meeting')\n"
        "one.LATE_S = one.Meeting = one.node = None\n"
        f"sys.path.insert(0, {str(FOLDER)!r}); import clusterkit_storage as s\n"
        f"h = s.unnamed({str(tmp_path)!r}); print('begun', flush=True)\n"
        "s.Blocks().write(h, 1 << 20); s.os.kill(s.os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "begun\n"), done.stderr
    await_true(lambda: not list(tmp_path.iterdir()), 10)


def rank(node: str, free: float = 80 * GB, total: float = 100 * GB) -> dict[str, object]:
    return {"node": node, "free": free, "total": total}


def test_a_nearly_full_disk_is_refused(program: ModuleType) -> None:
    known = [rank("n1"), rank("n1"), rank("n2", free=5.1 * GB), None]
    agreed = program.decide(None, known)
    assert agreed["errors"] == {2: "it is too full: 5.1 GB of 100 GB are free, 5% stay free"}
    assert (agreed["size"], agreed["ranks"]) == (1 << 30, 2)
    agreed = program.decide(3 * GB, [rank("n1", free=10 * GB), rank("n2", free=12 * GB)])
    (error,) = agreed["errors"].values()
    assert "free, and 6 GB are to be written" in error, "they may share it"


def test_little_is_written_where_room_is_short(program: ModuleType) -> None:
    agreed = program.decide(None, [rank("n1", free=6 * GB), rank("n2", free=7 * GB)])
    assert (agreed["size"], agreed["errors"]) == (GB // 8, {})
    assert program.decide(2 * GB, [rank("n1")])["size"] == 2 * GB


def test_a_folder_that_takes_no_file_is_told(program: ModuleType, tmp_path: Path) -> None:
    assert program.myself(str(tmp_path / "absent"))["error"].startswith("cannot write to it: ")
    assert program.myself("/proc")["error"].startswith("cannot write to it: ")
    assert program.file_system("/proc/self") == "proc"


def test_nobody_waits_for_a_rank_that_has_left(program: ModuleType) -> None:
    counts: Counter[str] = Counter()

    def add(key: str, more: int) -> int:
        counts[key] += more
        return counts[key]

    meeting = SimpleNamespace(store=SimpleNamespace(add=add))
    stays, left = program.Turns(meeting, 2), program.Turns(meeting, 2)
    left.leave()
    for _ in range(program.TURNS):
        stays.next()
    assert stays.all_came


def test_a_rank_that_is_stuck_is_waited_for_once_and_left_out_when_it_comes(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "PART_S", 0.5)
    counts: Counter[str] = Counter()
    waited_for: set[str] = set()

    def add(key: str, more: int) -> int:
        counts[key] += more
        waited_for.update({key} if not more and not key.endswith("/over") else ())
        return counts[key]

    meeting = SimpleNamespace(store=SimpleNamespace(add=add))
    goes_on, stuck = program.Turns(meeting, 2), program.Turns(meeting, 2)
    began = time.monotonic()
    for _ in range(program.TURNS):
        goes_on.next()
    assert time.monotonic() - began >= 1
    assert waited_for == {"turn/1"}
    assert not goes_on.all_came
    assert capsys.readouterr().out == "part 1 of 5: 1 of 2 ranks are left out\n"
    with pytest.raises(OSError, match="stuck for more than 1 s"):
        stuck.next()
    stuck.leave()
    assert counts["turn/5"] == 1, "nobody counts on it"
