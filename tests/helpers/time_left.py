"""The time that continuous integration has: what would begin after it is not run, and says so.

A processor of CI may be a third as fast as another time, and one that is stopped from outside has
shown nothing.
"""

from __future__ import annotations

import os
import time

UNTIL = "CLUSTERKIT_TESTS_UNTIL"
"""When the last test may begin, in seconds since 1970 (`.ci/run`); without it, at any time."""
OVER = "not run: the time of continuous integration was over (.ci/run)"


def left_s(longest_s: float) -> float:
    """Return how long tests may still begin, at most `longest_s` seconds; 0.0 where none may."""
    until = os.environ.get(UNTIL)
    return longest_s if until is None else min(longest_s, max(0.0, float(until) - time.time()))
