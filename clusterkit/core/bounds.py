"""Bounds of values that others wrote: annotations of dataclass fields, kept by `records`.

A number without a bound is one that a calendar, a shell or a file offset may not survive; text
without a pattern is only printed, never handed to a program.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated

from clusterkit.core.text import LONE_SURROGATE


@dataclass(frozen=True, slots=True)
class Within:
    """A number from `least` to `most`, both included."""

    least: float
    most: float

    def holds(self, value: object) -> bool:
        """Tell whether `value` is such a number."""
        return isinstance(value, int | float) and self.least <= value <= self.most


@dataclass(frozen=True, slots=True)
class Matching:
    """Text that matches a regular expression from its first to its last character."""

    pattern: str

    def holds(self, value: object) -> bool:
        """Tell whether `value` is such text."""
        return isinstance(value, str) and re.fullmatch(self.pattern, value) is not None


_LARGEST = (1 << 63) - 1
_LONGEST = 1 << 20


def is_sane(value: object) -> bool:
    """Tell whether a number fits a machine, and text can be encoded; as every value has to."""
    if isinstance(value, str):
        return len(value) <= _LONGEST and LONE_SURROGATE.search(value) is None
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or -_LARGEST <= value <= _LARGEST


LATEST_S = 32_503_680_000.0
"""Seconds since the epoch until the year 3000: times beyond it have no calendar here."""
Moment = Annotated[float, Within(0, LATEST_S)]
"""Seconds since the epoch."""
Rank = Annotated[int, Within(0, 65_535)]
"""The number of a node in its job; a hostlist has no more names."""
Attempt = Annotated[int, Within(0, 1_000_000)]
ExitCode = Annotated[int, Within(0, 255)]
NodeName = Annotated[str, Matching(r"[!-~]{1,255}")]
"""What may stand for a node in a list and on a terminal: letters, digits and signs of ASCII."""
Pid = Annotated[int, Within(2, 1 << 22)]
"""The number of a process, below PID_MAX_LIMIT of Linux; 1 is none that a job may have."""
Count = Annotated[int, Within(0, 65_536)]
"""How many nodes, workers or attempts there are."""
Seconds = Annotated[int, Within(0, 1_000_000_000)]
JobId = Annotated[str, Matching(r"[0-9]{1,18}(_[0-9]{1,9})?|(local|ssh)-[0-9a-f]{1,6}")]
"""Slurm's own, also of a job of one of its arrays; or ours. None begins with a dash."""
JobName = Annotated[str, Matching(r"[A-Za-z0-9_.][A-Za-z0-9_.+-]{0,120}")]
"""A job id, or the name of a run folder."""
ArrayId = Annotated[str, Matching(r"array-[0-9a-f]{6}")]
Folder = Annotated[str, Matching(r"/[^\x00-\x1f\x7f]{0,4095}")]
"""An absolute path."""
