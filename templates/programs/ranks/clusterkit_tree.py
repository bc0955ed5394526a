"""Keep the processes below this one together, so that none is left when it ends."""

import collections
import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

KILL_S = 2
BECOME_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""


def adopt_orphans():
    """Become the parent of every process below this one whose own parent dies."""
    ctypes.CDLL(None).prctl(BECOME_SUBREAPER, 1, 0, 0, 0)


def kill_descendants():
    """Kill all processes below this one, and give up those that do not go."""
    deadline = time.monotonic() + KILL_S
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def descendants(root):
    """Return the processes below `root` that have not ended."""
    children = collections.defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The name stands in parentheses, and may hold some itself.
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            children[int(parent)].append((int(entry.name), state))
    found, ahead = [], [root]
    while ahead:
        for pid, state in children[ahead.pop()]:
            ahead.append(pid)
            if state not in "ZX":
                found.append(pid)
    return found
