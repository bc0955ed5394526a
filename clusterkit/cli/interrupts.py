"""Signals that end a verb as Ctrl-C does, so that it leaves nothing running and no file behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""What `kill`, a scheduler, and the loss of an ssh session send."""


@contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt; one that is ignored (`nohup`) stays so."""
    before = {
        number: signal.signal(number, _interrupt)
        for number in _ENDING
        if signal.getsignal(number) is signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> NoReturn:
    del number, frame
    raise KeyboardInterrupt
