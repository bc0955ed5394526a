"""Ask the flight recorders of a node's ranks for dumps, which they else write at a time-out alone.

A rank with NCCL makes a pipe, reads it each second, and writes its dump when somebody has written
to it (torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, DumpPipe). One with gloo makes none.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from clusterkit.core import processes, reading

_PIPES = b"TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_FILES = (b"TORCH_FR_DUMP_TEMP_FILE", b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""The name since torch 2.8 first."""
_SUFFIX = ".pipe"
_MOST = 1 << 10
"""Ranks of a node, and places of pipes that they name."""
_LOOK_S = 0.2


def ask(pids: Iterable[int]) -> dict[Path, float]:
    """Ask those of these processes that listen; return which files come, and when they changed."""
    return _asked(_places(pids))


def await_new(dumps: Mapping[Path, float], timeout_s: float) -> None:
    """Wait until these have changed, and change no more, but not for longer than that."""
    deadline, before = time.monotonic() + timeout_s, dict(dumps)
    while time.monotonic() < deadline:
        now = {dump: _changed(dump) for dump in dumps}
        if now == before and all(now[dump] != asked for dump, asked in dumps.items()):
            return
        before = now
        time.sleep(_LOOK_S)


def _places(pids: Iterable[int]) -> set[tuple[str, str]]:
    """Return what the names of pipes, and of dumps, begin with."""
    found = set()
    for pid in pids:
        given = dict(item.partition(b"=")[::2] for item in processes.environment(pid))
        dumps = next((given[name] for name in _FILES if given.get(name)), b"")
        if (pipes := given.get(_PIPES, b"")).startswith(b"/") and dumps.startswith(b"/"):
            found.add((os.fsdecode(pipes), os.fsdecode(dumps)))
    return set(islice(found, _MOST))


def _asked(places: Iterable[tuple[str, str]]) -> dict[Path, float]:
    asked: dict[Path, float] = {}
    for pipes, dumps in places:
        folder, begin = Path(pipes).parent, pipes.rpartition("/")[2]
        for name in islice(reading.names_in(folder), _MOST):
            rank = name.removeprefix(begin).removesuffix(_SUFFIX)
            whole = name == f"{begin}{rank}{_SUFFIX}" and rank.isascii() and rank.isdigit()
            dump = Path(f"{dumps}{rank}")
            before = _changed(dump)
            if whole and _write(folder / name):
                asked[dump] = before
    return asked


def _write(pipe: Path) -> bool:
    """Write to a pipe that somebody reads, and to nothing else."""
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        with suppress(OSError):  # it is full, so it was asked before
            return stat.S_ISFIFO(os.fstat(descriptor).st_mode) and os.write(descriptor, b"1") == 1
        return False
    finally:
        os.close(descriptor)


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0
