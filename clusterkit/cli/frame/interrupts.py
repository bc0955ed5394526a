"""Signals that end a verb as Ctrl-C does, so that it leaves nothing running and no file behind."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""What `kill`, a scheduler, and the loss of an ssh session send."""
_TIDYING_S = 10.0
"""How long the next of them do nothing. A lost session sends SIGHUP by the kernel and by its shell,
timeout(1) SIGTERM twice, and systemd both: a second KeyboardInterrupt would leave things running
that the first one is about to end. Ctrl-C does not wait."""


@contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt; one that is ignored (`nohup`) stays so."""
    interrupt = _Interrupt()
    before = {
        number: signal.signal(number, interrupt)
        for number in _ENDING
        if signal.getsignal(number) is signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Interrupt:
    """A handler that raises KeyboardInterrupt, and not again while that is heeded."""

    def __init__(self) -> None:
        """Have raised nothing yet."""
        self._raised_at = -math.inf

    def __call__(self, number: int, frame: object) -> None:
        """Heed a signal."""
        del number, frame
        now = time.monotonic()
        if now - self._raised_at >= _TIDYING_S:
            self._raised_at = now
            raise KeyboardInterrupt
