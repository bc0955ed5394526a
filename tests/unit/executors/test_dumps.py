"""Flight recorders are asked for dumps by pipes, and nothing else is written to."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterkit.core import processes
from clusterkit.executors.node import dumps
from tests.helpers.lab_jobs import await_true


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[int]:
    """Return a process that was told of pipes and dumps, as ranks are, and of older names."""
    environment = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/p-",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/d-",
    }
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **environment}) as process:
        # Popen returns in the middle of exec, before the kernel shows the new variables.
        await_true(lambda: any(processes.environment(process.pid)))
        yield process.pid
        process.kill()


def listens(pipe: Path) -> int:
    os.mkfifo(pipe)
    return os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)


def test_who_listens_is_asked_once_and_whatever_else_is_there_is_left_alone(
    tmp_path: Path, rank: int
) -> None:
    reader, other = listens(tmp_path / "p-3.pipe"), listens(tmp_path / "p-x.pipe")
    os.mkfifo(tmp_path / "p-4.pipe")  # whoever read it is gone
    (tmp_path / "p-5.pipe").write_text("file")
    (tmp_path / "p-6.pipe").symlink_to(tmp_path / "p-3.pipe")
    (tmp_path / "p-7.pipe").mkdir()
    assert dumps.ask([rank, rank, os.getpid(), 1 << 30]) == {tmp_path / "d-3": 0}
    assert (os.read(reader, 99), os.read(other, 99)) == (b"1", b"")
    assert (tmp_path / "p-5.pipe").read_text() == "file"


def test_a_pipe_that_nobody_empties_holds_nobody_up(tmp_path: Path, rank: int) -> None:
    reader = listens(tmp_path / "p-0.pipe")
    writer = os.open(tmp_path / "p-0.pipe", os.O_WRONLY | os.O_NONBLOCK)
    os.write(writer, bytes(1 << 16))
    assert dumps.ask([rank]) == {}
    os.close(reader)
    os.close(writer)


def test_dumps_are_waited_for_until_they_are_whole_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = tmp_path / "d-0"
    began = time.monotonic()
    dumps.await_new({dump: 0}, 0.3)
    assert time.monotonic() - began >= 0.3
    dump.write_text("x")
    naps: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=naps.append)
    monkeypatch.setattr(dumps, "time", clock)
    dumps.await_new({dump: 0}, 60)
    dumps.await_new({}, 60)
    assert len(naps) == 1, "a second look shows that it changes no more"
