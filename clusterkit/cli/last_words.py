"""The last words of a failed job, as the verbs about jobs show them below its state."""

from __future__ import annotations

import shutil
from typing import Any

from clusterkit import node_results
from clusterkit.cli import console
from clusterkit.cli.job_args import document_of
from clusterkit.jobs import Job
from clusterkit.jobs.failure import failure_of

_LINES = 15
_MARGIN = "  | "


def full_document_of(job: Job) -> dict[str, Any]:
    """Return what `--json` tells of a job that it is all about: also its failure and attempts."""
    failure = failure_of(job)
    keys = ("node", "rank", "exit_code", "message", "tail")
    told = {key: getattr(failure, key) for key in keys} if failure is not None else None
    attempts = node_results.read_attempts(job.run)
    return {**document_of(job), "failure": told, "attempts": attempts}


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
