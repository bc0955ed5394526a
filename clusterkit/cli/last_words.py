"""The last words of a failed job, as the verbs about jobs show them below its state."""

from __future__ import annotations

import shutil

from clusterkit.cli import console
from clusterkit.jobs import Job
from clusterkit.jobs.failure import failure_of

_LINES = 15
_MARGIN = "  | "


def last_words(job: Job) -> list[str]:
    """Return dimmed lines with the end of the output of the rank, or node, that failed first."""
    failure = failure_of(job)
    if failure is None:
        return []
    lines = list(failure.tail[-_LINES:])
    if failure.message and not any(failure.message in line for line in lines):
        lines.append(failure.message)
    room = shutil.get_terminal_size().columns - len(_MARGIN)
    return [console.dim(_MARGIN + _cut(line, room)) for line in lines]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
