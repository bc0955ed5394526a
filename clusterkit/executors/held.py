"""Jobs that wait for others where no scheduler makes them wait: over ssh, and on this machine.

Such a job is *held*: everything about it is on disk, and a client that looks on starts it when its
time has come (`jobs/start_held.py`).
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from pathlib import Path
from typing import Protocol, cast

from clusterkit.core.model import ClusterKind, JobState, LaunchPlan
from clusterkit.executors.base import SchedulerState
from clusterkit.executors.run.dependencies import Ties
from clusterkit.executors.run.runfolder import RunFolder, Submission

HELD = "held"
"""The state of such a job in our own word."""

_HOLDERS = {
    ClusterKind.LOCAL: "clusterkit.executors.local.held",
    ClusterKind.SSH: "clusterkit.executors.ssh.held",
}


class Holder(Protocol):
    """How jobs of one kind are held."""

    def hold(self, plan: LaunchPlan, run: RunFolder, ties: Ties, *, hidden: Collection[str]) -> str:
        """Write into `run` what is needed to start the job later; return its job id.

        Raises:
            UserError: it cannot be written, or such a job cannot wait.
        """

    def release(self, run: RunFolder, submission: Submission) -> None:
        """Start the job.

        Raises:
            RemoteError: it cannot be started now, which is worth another try; or, where
                `state.json` says so, never.
            UserError: something in its folder cannot be read or written.
        """


def holder_for(kind: ClusterKind) -> Holder:
    """Return what holds jobs on clusters of this kind; Slurm needs none."""
    return cast("Holder", importlib.import_module(_HOLDERS[kind]))


def has_to_wait(kind: ClusterKind, ties: Ties) -> bool:
    """Tell whether a new job is held.

    Over ssh every job of an array is: the one before it may have taken its slots.
    """
    if kind not in _HOLDERS:
        return False
    return bool(ties.after) or (kind is ClusterKind.SSH and ties.array is not None)


def state_of_held(run: RunFolder) -> SchedulerState | None:
    """Return the state of a job of which nothing was ever started; None where it is not held."""
    if not run.held.exists():
        return None
    if run.cancelled.exists():
        return SchedulerState(state=JobState.CANCELLED, word="ended")
    return SchedulerState(state=JobState.PENDING, word=HELD)


def began_at(submission: Submission, written: Path) -> float:
    """Return when the start of a job began, in seconds since the epoch: a held one is an old one.

    `written` is what is written just before it is handed over.
    """
    try:
        return max(submission.submitted_at, written.stat().st_mtime)
    except OSError:
        return submission.submitted_at
