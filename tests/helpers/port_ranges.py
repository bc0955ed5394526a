"""Ranges of ports that no two tests share: of those in one process, and of those beside it."""

from __future__ import annotations

import os
from itertools import count

_FIRST = 10000  # below the ports of jobs, and below those that the kernel hands out
_OF_A_PROCESS = 2000
_SIZE = 60
_taken = count()


def next_range() -> tuple[int, int]:
    """Return the first and the last port of a range that nobody had before."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST + process * _OF_A_PROCESS + next(_taken) * _SIZE
    return first, first + _SIZE - 1
