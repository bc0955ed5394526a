"""The time that continuous integration has: what would begin after it is not run, and says so.

A processor of CI may be a third as fast as another time, and one that is stopped from outside has
shown nothing.
"""

from __future__ import annotations

import os
import time

UNTIL = "CLUSTERKIT_TESTS_UNTIL"
"""When the last test may begin, in seconds since 1970 (`.ci/run`); without it, at any time."""
WITHOUT = "CLUSTERKIT_TESTS_WITHOUT"
"""The folder of tests that are left out, as they would not end in time (`.ci/run`)."""
ORDER = "CLUSTERKIT_TESTS_ORDER"
"""Shuffles the files of the practice cluster (`.ci/run`): not always the same come too late."""
DOCKER = "tests/docker"
OVER = "not run: the time of continuous integration was over, or too short for it (.ci/run)"


def left_s(longest_s: float) -> float:
    """Return how long tests may still begin, at most `longest_s` seconds; 0.0 where none may."""
    until = os.environ.get(UNTIL)
    return longest_s if until is None else min(longest_s, max(0.0, float(until) - time.time()))


def may_begin(test: str) -> bool:
    """Tell whether a test, or all of a folder, may begin now."""
    without = os.environ.get(WITHOUT)
    return left_s(1.0) > 0 and not (without and test.startswith(without))
