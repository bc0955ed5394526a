"""Say of a job that did not run what it waits for, or which job before it was the reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from clusterkit.core.model import JobState, JobStatus
from clusterkit.executors.held import HELD
from clusterkit.executors.run.dependencies import Ending, waiting_for, why_never
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.state.conclude import Evidence

_NEVER = "DependencyNeverSatisfied"
"""Slurm's reason, in `squeue`; sacct gives none."""
_READY = "to be started by clusterkit supervise, or wait"


def explained(
    status: JobStatus,
    evidence: Evidence,
    states_of: Callable[[Iterable[RunFolder]], Mapping[str, JobState]],
) -> JobStatus:
    """Return the state with that reason; as it is where there is none.

    `states_of` tells the states of other jobs, by the paths of their run folders.

    Also a job that Slurm has forgotten is known to have been cancelled, if what it waited for can
    never happen: Slurm was told to end it then. A held job ends here: nobody else would end it.
    """
    held = evidence.scheduler is not None and evidence.scheduler.word == HELD
    if not (held or _may_have_waited(status, evidence)):
        return status
    # Jobs that it follows in any case are not asked: an array with a limit is a chain of those.
    after = [one for one in evidence.submission.after if one.ending is not Ending.ANY]
    why = why_never(after, states_of(RunFolder(Path(one.run_dir)) for one in after))
    if why is None and held:
        why = _folder_gone(evidence)
    if why is not None:
        return dataclasses.replace(status, state=JobState.CANCELLED, reason=why)
    return dataclasses.replace(status, reason=_what_is_left(evidence)) if held else status


def _may_have_waited(status: JobStatus, evidence: Evidence) -> bool:
    """Tell whether Slurm may have ended the job because of another one."""
    ran = bool(evidence.results.nodes) or evidence.attempt > 0
    if not evidence.submission.after or ran or evidence.cancelled:
        return False
    forgotten = status.state is JobState.UNKNOWN and evidence.silence is None
    ended = status.state is JobState.CANCELLED and (status.reason or _NEVER) == _NEVER
    return forgotten or ended


def _folder_gone(evidence: Evidence) -> str | None:
    for one in evidence.submission.after:
        if not Path(one.run_dir).exists():
            return f"the run folder of {one.job_id} is gone, and it was to run after that job"
    return None


def _what_is_left(evidence: Evidence) -> str:
    """Return which jobs have not ended, as far as somebody has looked."""
    after = evidence.submission.after
    left = [one for one in after if not RunFolder(Path(one.run_dir)).state.exists()]
    return waiting_for(left) if left else _READY
