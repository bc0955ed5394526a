"""Attempts that follow others: after which, and how many did without a queue (`--restarts N`).

Each of these leaves a file of its own, created exclusively by whoever sees the end of the attempt
before first; it says why.
"""

from __future__ import annotations

import json
import math
import re

from clusterkit.core import files
from clusterkit.core.model import JobState
from clusterkit.core.records import text_of
from clusterkit.executors.run import attempts, node_results
from clusterkit.executors.run.runfolder import RESTART, RunFolder, Submission, listed

_NAME = re.compile(rf"{RESTART}([0-9]{{1,7}})\.json")


def may_start_again(run: RunFolder, submission: Submission, state: JobState, attempt: int) -> bool:
    """Tell whether the job gets another attempt after this one, which has ended in `state`."""
    in_vain = node_results.why_in_vain(run, attempt)
    failure = node_results.first_failure(run, attempt)
    return attempts.restarts(
        state,
        failure,
        attempt=attempt,
        left_out=len(node_results.left_out(run)),
        submission=submission,
        excused=node_results.is_excused(
            submission, node_results.read_results(run, attempt).nodes, failure, in_vain
        ),
        restarted=count(run, attempt),
    )


def count(run: RunFolder, attempt: int) -> int:
    """Return how many attempts before this one were followed on the nodes that the job has."""
    found = (_NAME.fullmatch(name) for name in listed(run.path))
    return sum(1 for match in found if match and int(match[1]) < attempt)


def note(run: RunFolder, attempt: int, why: str) -> None:
    """Write down that this attempt is followed on the nodes that the job has, unless that is there.

    Raises:
        UserError: the run folder cannot be written.
    """
    files.create_text(run.restarted(attempt), json.dumps({"why": why, "attempt": attempt}))


def why(run: RunFolder, attempt: int) -> str | None:
    """Return why this attempt is followed on the nodes that the job has; None where it is not."""
    return text_of(files.read_json(run.restarted(attempt)) or {}, "why")


def pause_s(run: RunFolder, attempt: int) -> float:
    """Return how long the attempt after this one waits.

    One that has come further than all before it was no short one: faults that come every minute
    are no loop.
    """
    lasted: list[float] = []
    reached = -1
    for one in node_results.read_attempts(run):
        if one.attempt > attempt:
            continue
        ended = max(result.ended_at for result in one.nodes)
        took, step = ended - min(r.started_at for r in one.nodes), attempts.last_step(one.nodes)
        if step is not None and step > reached:
            took, reached = math.inf, step
        lasted.append(took)
    return attempts.pause_s(lasted)


def is_due(run: RunFolder, attempt: int) -> bool:
    """Tell whether the attempt after this one may begin, by the clock of the folder alone.

    Raises:
        UserError: the run folder cannot be written.
    """
    seconds = pause_s(run, attempt)
    return not seconds or files.age_s(run.restarted(attempt)) >= seconds
