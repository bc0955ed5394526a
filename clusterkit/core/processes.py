"""Find and end every process of a job on this machine, wherever it has hidden itself.

A descendant is known by the variable `CK_JOB_UID` in the environment it was started with: that
survives daemonising, `setsid` and reparenting, where process groups and sessions do not (torch's
elastic agent starts every worker in a session of its own).

Standard library only: this file is also run by its path, as the watchdog of a worker, which ends
the job's processes should the worker be killed without a chance to do so.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARKER = "CK_JOB_UID"
PROC = Path("/proc")

_PR_SET_CHILD_SUBREAPER = 36
_STAT_STATE, _STAT_PPID, _STAT_STARTTIME = 0, 1, 19
"""Positions in /proc/PID/stat behind the command name (proc(5) fields 3, 4 and 22)."""
_KILL_S = 10.0


def marked(value: str, *, prefix: bool = False) -> set[int]:
    """Return the processes whose `CK_JOB_UID` is `value`, or begins with it."""
    entry = f"{MARKER}={value}".encode()
    found = set()
    for pid in _pids():
        if any(item == entry or (prefix and item.startswith(entry)) for item in environment(pid)):
            found.add(pid)
    return found - {os.getpid()}


def environment(pid: int) -> list[bytes]:
    """Return what `pid` was started with, `NAME=VALUE` each; nothing where that is not told."""
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def children(parent: int) -> set[int]:
    """Return the children of `parent`, zombies among them."""
    return set(_tree().get(parent, ()))


def descendants(root: int) -> set[int]:
    """Return the children of `root`, their children, and so on."""
    tree = _tree()
    found: set[int] = set()
    waiting = [root]
    while waiting:
        for child in tree.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def catches(pid: int, signum: int) -> bool:
    """Tell whether `pid` has a handler of its own for this signal."""
    try:
        status = (PROC / str(pid) / "status").read_text()
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def send(pid: int, signum: int) -> None:
    """Send a signal to a process that may be gone already, or belong to someone else."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def await_signal(signals: Collection[signal.Signals], timeout_s: float) -> signal.Signals | None:
    """Take one of these signals, which are blocked, and wait for it; None where none came.

    A process that was stopped (Slurm suspends jobs so) or traced may come back from the wait with
    whatever was in memory: CPython 3.11 reads the answer although there was none.
    """
    arrived = signal.sigtimedwait(signals, timeout_s)
    number = arrived.si_signo if arrived is not None else None
    return next((known for known in signals if known == number), None)


def kill_all(find: Callable[[], set[int]]) -> None:
    """Kill what `find` returns until it returns nothing that lives, for 10 s at most.

    It is asked again after each round, because a process may fork while it is being killed.
    """
    deadline = time.monotonic() + _KILL_S
    while True:
        living = {pid for pid in find() if alive(pid)}
        for pid in living:
            send(pid, signal.SIGKILL)
        if not living or time.monotonic() > deadline:
            return
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Tell whether `pid` is there and no zombie."""
    fields = _stat(pid)
    return fields is not None and fields[_STAT_STATE] not in {"Z", "X"}


def start_time(pid: int) -> str | None:
    """Return when `pid` started, in clock ticks since boot; None where there is no such process.

    Together with `boot_id` it tells a process from a later one that got the same number.
    """
    fields = _stat(pid)
    return fields[_STAT_STARTTIME] if fields is not None else None


def command_of(pid: int) -> tuple[str, ...]:
    """Return the words of the command line of `pid`; none where there is no such process."""
    try:
        text = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(os.fsdecode(word) for word in text.removesuffix(b"\0").split(b"\0"))


def of_user(uid: int) -> Iterator[int]:
    """Yield the processes of a user."""
    for pid in _pids():
        with suppress(OSError):
            if (PROC / str(pid)).stat().st_uid == uid:
                yield pid


def boot_id() -> str:
    """Return what identifies this boot of this machine."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (Linux only).

    So the tree below this process stays complete, and `descendants` finds also what cleared or
    overwrote its environment.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def guarded(value: str, *, holding: Collection[int] = ()) -> Iterator[None]:
    """Keep a process that kills what is marked should this one be killed (SIGKILL, no memory).

    It holds the descriptors `holding` open as long, and so the locks on them.
    """
    command = [sys.executable, "-I", "-S", __file__, value]
    nothing = subprocess.DEVNULL
    # It keeps the blocked signals of this process, and so outlives those sent to a whole step.
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,
        pass_fds=tuple(holding),
        env={name: value for name, value in os.environ.items() if name != MARKER},
    ) as watchdog:
        # An exception closes its standard input without a word, and it kills what was left.
        yield
        with suppress(BrokenPipeError):
            watchdog.communicate(b".")


def guard(value: str) -> None:
    """Wait for the end of standard input; kill what is marked unless a byte came before it."""
    if not os.read(0, 1):
        kill_all(lambda: marked(value))


def _pids() -> Iterator[int]:
    for name in os.listdir(PROC):  # noqa: PTH208 - a Path per process would cost more than the look
        if name.isdigit():
            yield int(name)


def _tree() -> dict[int, list[int]]:
    """Return the children of every process that has any."""
    tree: dict[int, list[int]] = {}
    for pid in _pids():
        fields = _stat(pid)
        if fields is not None:
            tree.setdefault(int(fields[_STAT_PPID]), []).append(pid)
    return tree


def _stat(pid: int) -> list[str] | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command name stands in parentheses and may itself hold spaces and parentheses.
    return text.rpartition(")")[2].split()


if __name__ == "__main__":
    guard(sys.argv[1])
