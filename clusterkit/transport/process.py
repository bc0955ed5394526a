"""Run a program of this machine that reads a script, and keep what it printed if it is too slow."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

_PATIENCE_S = 3.0
"""After each signal."""
_LAST_WORDS_S = 0.5
"""For what is still in the pipes; a descendant that cannot be killed may hold them open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a program printed until it ended or was ended."""

    chunks: tuple[tuple[float, bytes], ...]
    """Its standard output in the pieces in which it came, each with the time (epoch) of that."""
    stderr: bytes
    exit_code: int | None
    """None where its time was up."""

    @property
    def stdout(self) -> bytes:
        """Return its standard output in one piece."""
        return b"".join(chunk for _, chunk in self.chunks)


def run_fed(
    argv: Sequence[str],
    text: str,
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    signals: Sequence[signal.Signals] = (signal.SIGKILL,),
) -> Ended:
    """Run `argv` with `text` on its standard input; end it by `signals`, one after the other.

    It has a session of its own, so that an interrupt from the keyboard does not end it before
    its signals are sent.

    Raises:
        OSError: it cannot be started.
    """
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if environment is None else dict(environment),
        start_new_session=True,
    )
    out: list[tuple[float, bytes]] = []
    err: list[tuple[float, bytes]] = []
    threads = (
        threading.Thread(target=_feed, args=(process.stdin, text.encode()), daemon=True),
        threading.Thread(target=_drain, args=(process.stdout, out), daemon=True),
        threading.Thread(target=_drain, args=(process.stderr, err), daemon=True),
    )
    for thread in threads:
        thread.start()
    exit_code = None
    try:
        with suppress(subprocess.TimeoutExpired):
            exit_code = process.wait(timeout=timeout_s)
    finally:
        if exit_code is None:
            _end(process, signals)
    for thread in threads[1:]:
        thread.join(timeout=_LAST_WORDS_S)
    return Ended(chunks=tuple(out), stderr=b"".join(chunk for _, chunk in err), exit_code=exit_code)


def _feed(pipe: IO[bytes], data: bytes) -> None:
    with suppress(BrokenPipeError), pipe:
        pipe.write(data)


def _drain(pipe: IO[bytes], into: list[tuple[float, bytes]]) -> None:
    with pipe:
        while chunk := os.read(pipe.fileno(), 1 << 16):
            into.append((time.time(), chunk))


def _end(process: subprocess.Popen[bytes], signals: Sequence[signal.Signals]) -> None:
    """Send signal after signal until it has ended."""
    for signum in signals:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_PATIENCE_S)
            return
