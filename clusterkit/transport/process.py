"""Run a program of this machine that reads a script, and hand on what it prints as it comes."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from clusterkit.core.data import read_template

_GRACE_S = 3.0
"""After each signal."""
_LAST_WORDS_S = 0.5
"""For what is still in the pipes; a descendant that cannot be killed may hold them open."""


_MOST_ERRORS = 4 << 20
"""Bytes of standard error that are kept, the first ones."""
_TICK_S = 0.1

OnOutput = Callable[[float, bytes], bool]
"""Called with each piece of standard output and when it came (epoch); false where enough came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended."""

    stderr: bytes
    exit_code: int | None
    """None where it was ended: its time was up, or it had printed enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a program is ended that does not end by itself."""

    signals: Sequence[signal.Signals] = (signal.SIGKILL,)
    """Sent one after the other, until it has ended."""
    orphaned: signal.Signals | None = None
    """What it gets when this process ends without them, such as by SIGKILL."""
    give_back: Callable[[bytes], None] = lambda _: None
    """Called with its standard error so far where the first signal does not end it, to give back
    what it may no longer come to, as after SIGKILL."""


_KILLED = Ending()


def run_fed(
    argv: Sequence[str],
    text: str,
    *,
    on_output: OnOutput,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    ending: Ending = _KILLED,
) -> Ended:
    """Run `argv` with `text` on its standard input; end it by `ending`.

    It is ended when its time is up, or when `on_output`, which its own thread calls, has enough.
    It has a session of its own, so that an interrupt from the keyboard does not end it before
    its signals are sent.

    Raises:
        OSError: it cannot be started.
    """
    process = subprocess.Popen(
        list(argv) if ending.orphaned is None else tied(argv, ending.orphaned, environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if environment is None else dict(environment),
        start_new_session=True,
    )
    err = bytearray()
    enough = threading.Event()

    def take(data: bytes) -> None:
        if not on_output(time.time(), data):
            enough.set()

    def note(data: bytes) -> None:
        err.extend(data[: max(0, _MOST_ERRORS - len(err))])

    threads = (
        threading.Thread(target=_feed, args=(process.stdin, text.encode()), daemon=True),
        threading.Thread(target=_drain, args=(process.stdout, take), daemon=True),
        threading.Thread(target=_drain, args=(process.stderr, note), daemon=True),
    )
    exit_code = None
    try:
        for thread in threads:
            thread.start()
        exit_code = _wait(process, time.monotonic() + timeout_s, enough)
    finally:
        if exit_code is None:
            _end(process, ending, err)
    for thread in threads[1:]:
        thread.join(timeout=_LAST_WORDS_S)
    return Ended(stderr=bytes(err), exit_code=exit_code)


def run_attached(argv: Sequence[str], *, environment: Mapping[str, str] | None = None) -> int:
    """Run a program with the streams of this process; return its exit code as a shell has it.

    What ends this process ends it too.

    Raises:
        OSError: it cannot be started.
    """
    ending = signal.SIGTERM
    with subprocess.Popen(
        tied(argv, ending, environment), env=None if environment is None else dict(environment)
    ) as process:
        try:
            code = process.wait()
        except BaseException:  # Ctrl-C has reached it as well, where there is a terminal
            process.send_signal(ending)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_GRACE_S)
            process.kill()
            raise
    return code if code >= 0 else 128 - code


def tied(
    argv: Sequence[str], orphaned: signal.Signals, environment: Mapping[str, str] | None = None
) -> list[str]:
    """Return the command that runs `argv`, and sends it that signal once this process has gone.

    Raises:
        FileNotFoundError: there is no such program.
    """
    path = None if environment is None else environment.get("PATH")
    if shutil.which(argv[0], path=path) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    program = read_template("programs/machine/end_with_parent.py")
    tie = (sys.executable, "-I", "-S", "-c", program, str(os.getpid()), str(orphaned.value))
    return [*tie, *argv]


def _wait(process: subprocess.Popen[bytes], end: float, enough: threading.Event) -> int | None:
    while not enough.is_set() and (left := end - time.monotonic()) > 0:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=min(left, _TICK_S))
    return process.poll()


def _feed(pipe: IO[bytes], data: bytes) -> None:
    with suppress(BrokenPipeError), pipe:
        pipe.write(data)


def _drain(pipe: IO[bytes], take: Callable[[bytes], None]) -> None:
    with pipe:
        while chunk := os.read(pipe.fileno(), 1 << 16):
            take(chunk)


def _end(process: subprocess.Popen[bytes], ending: Ending, errors: bytearray) -> None:
    """Send signal after signal until it has ended."""
    for number, signum in enumerate(ending.signals):
        if number == 1:
            ending.give_back(bytes(errors))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE_S)
            return
