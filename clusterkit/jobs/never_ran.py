"""Say of a job that ended without having run which of the jobs before it was the reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from clusterkit.model import JobState, JobStatus
from clusterkit.runfolder import RunFolder
from clusterkit.ties import Ending, why_never

if TYPE_CHECKING:
    from clusterkit.jobs.state import Evidence, Job

_NEVER = "DependencyNeverSatisfied"
"""Slurm's reason, in `squeue`; sacct gives none."""


def explained(
    status: JobStatus, evidence: Evidence, load: Callable[[Iterable[RunFolder]], Iterable[Job]]
) -> JobStatus:
    """Return the state with that reason; as it is where there is none.

    Also a job that Slurm has forgotten is known to have been cancelled, if what it waited for can
    never happen: Slurm was told to end it then.
    """
    after = [one for one in evidence.submission.after if one.ending is not Ending.ANY]
    ran = bool(evidence.results.nodes) or evidence.attempt > 0
    by_hand = evidence.cancelled or (status.reason or _NEVER) != _NEVER
    forgotten = status.state is JobState.UNKNOWN and evidence.silence is None
    ended = status.state is JobState.CANCELLED and not by_hand
    if not after or ran or not (ended or (forgotten and not evidence.cancelled)):
        return status
    others = load(RunFolder(Path(one.run_dir)) for one in after)
    why = why_never(after, {str(job.run.path): job.status.state for job in others})
    if why is None:
        return status
    return dataclasses.replace(status, state=JobState.CANCELLED, reason=why)
