"""How many steps each attempt of a job made, by the steps that its first node prints."""

from __future__ import annotations

import os
from pathlib import Path

from clusterkit.core.reading import open_regular
from clusterkit.observe import throughput
from clusterkit.observe.diagnose.hits import RESTART

_LONGEST = 1 << 14
_MOST = 1 << 28
"""Bytes that are read; a log is read by the line, which takes some seconds for so much."""


def steps_of_attempts(log: Path) -> dict[int, int]:
    """Return how many steps each attempt made, of those of which the log shows any.

    From the first that was printed to the last, and those before the first, which are as many as
    there are between two lines.
    """
    printed: dict[int, list[int]] = {}
    attempt = read = 0
    try:
        with os.fdopen(open_regular(log), "rb") as file:
            while (raw := file.readline(_LONGEST)) and read < _MOST:
                read += len(raw)
                text = raw.decode(errors="replace")
                mark = RESTART.match(text)
                if mark is not None:
                    attempt = int(mark["attempt"])
                elif (step := throughput.step_of(text)) is not None:
                    _note(printed.setdefault(attempt, []), step)
    except OSError:
        return {}
    return {attempt: _made(steps, from_zero=not attempt) for attempt, steps in printed.items()}


def _note(steps: list[int], step: int) -> None:
    """Keep the first step, the second, and the last; others print what came before it as well."""
    if len(steps) < 2:
        if not steps or step > steps[-1]:
            steps.append(step)
    else:
        steps[2:] = [max(step, *steps[1:])]


def _made(steps: list[int], *, from_zero: bool) -> int:
    first, last = steps[0], steps[-1]
    alone = first if from_zero else 1
    apart = steps[1] - first if len(steps) > 1 else alone
    return last - first + max(1, min(apart, first))
