"""A clock that stands still while its process is stopped."""

from __future__ import annotations

import threading
import time

_TICK_S = 0.5
_STOPPED_S = 4.0
"""Who was asleep for so long between two ticks was stopped, and its job with it."""


class LivedClock:
    """Seconds that this process has lived through.

    A job that is suspended (gang scheduling, `scontrol suspend`) hears nothing for hours, and yet
    no node of it has gone.
    """

    def __init__(self) -> None:
        """Stand at the time of the monotonic clock."""
        self._lock = threading.Lock()
        self._looked_at = time.monotonic()
        self._stopped_s = 0.0

    def begin(self) -> None:
        """Look at the time now and then, in a thread of its own."""
        threading.Thread(target=self._tick, daemon=True).start()

    def now(self) -> float:
        """Return the time, in seconds; only differences mean something."""
        with self._lock:
            now = time.monotonic()
            asleep = now - self._looked_at
            if asleep >= _STOPPED_S:
                self._stopped_s += asleep
            self._looked_at = now
            return now - self._stopped_s

    def _tick(self) -> None:
        while True:
            time.sleep(_TICK_S)
            self.now()
