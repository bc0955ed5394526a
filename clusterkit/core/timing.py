"""Waiting times, which the tests of clusterkit shorten by one factor.

`CLUSTERKIT_TIME_SCALE=0.2` makes the times of a process, and of the node agents and workers that it
starts, a fifth. It is for tests alone: who waits for others for a shorter time than they may need
gives up healthy nodes. Whatever is no number from 0.1 to 1 counts as 1. Limits that protect from
slow machines (of a connection, an answer, a start) are not scaled, nor are those of launchers.
"""

from __future__ import annotations

import os

VARIABLE = "CLUSTERKIT_TIME_SCALE"
_SHORTEST = 0.1


def scale_of(text: str | None) -> float:
    """Return the factor that the value of the variable means; 1 for what is none."""
    try:
        scale = float(text or 1)
    except ValueError:
        return 1.0
    return scale if _SHORTEST <= scale <= 1 else 1.0


_SCALE = scale_of(os.environ.get(VARIABLE))


def scaled(seconds: float, at_least: float = 0.0) -> float:
    """Return how long to wait: `seconds`, in tests a part of that, and no less than `at_least`."""
    return max(seconds * _SCALE, min(seconds, at_least))


def passed_on() -> dict[str, str]:
    """Return the variable for a process on another machine; nothing where it is not set."""
    return {VARIABLE: f"{_SCALE:g}"} if VARIABLE in os.environ else {}
