"""What every executor offers, and the environment that a job may see of its submitter.

Where no scheduler makes jobs wait for others (over ssh, and on this machine), such a job is queued:
everything about it is on disk, and a client that looks on starts it when its time has come
(`jobs/start_queued.py`), or the process that `submit` leaves for it (`jobs/starter.py`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core.errors import Problem, RemoteError, UserError
from clusterkit.core.model import JobState, LaunchPlan
from clusterkit.core.timing import scaled
from clusterkit.executors.run.dependencies import Dependencies
from clusterkit.executors.run.runfolder import RunFolder, Submission

RUN_FOLDER_VARIABLE = "CLUSTERKIT_RUN_FOLDER"
PYTHON_VARIABLE = "CLUSTERKIT_WORKER_PYTHON"

REQUEUED = 144
"""Exit code of a function of submitit that has replaced its pickle by a checkpoint, and is to be
started again; the same as in submitit.local."""

_OF_ANOTHER_JOB = re.compile(
    r"SLURM_|SLURMD_|SBATCH_|SRUN_|SALLOC_|PMI_|PMI2_|PMIX_|OMPI_|SUBMITIT_|CK_|CLUSTERKIT_RUN_"
)
_KEPT = frozenset({"SLURM_CONF"})
_DEFAULT = "CK_DEFAULT_"
"""Before the name of what the node script of another job has set because nobody had: its value."""


Show = Callable[[str], None]
"""Who is told in a few words how far long work is, again and again."""


def untold(text: str) -> None:
    """Be told of progress that nobody looks at."""


QUEUED = "held"
"""The state of a queued job in our own word."""


class RefusalError(RemoteError):
    """A job that was handed over and is certain not to run."""

    ended_as = JobState.FAILED


class CancelledEarlyError(RefusalError):
    """A job that somebody cancelled while it was being handed over, and that does not run."""

    ended_as = JobState.CANCELLED


class UnconfirmedError(RemoteError):
    """A job that was handed over, and of which nobody can tell yet whether it was accepted."""

    def __init__(self, output: str, run: RunFolder) -> None:
        """Give the `output` instead of an answer, and how to find the job in `run`."""
        super().__init__(
            f"{output}: nobody can tell yet whether the job was accepted",
            hint=f"do not submit it again: clusterkit status {run.key} looks for it, "
            f"clusterkit cancel {run.key} ends it",
        )
        self.run = run


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What came of handing a job over."""

    job_id: str
    messages: tuple[str, ...] = ()
    """What the scheduler said beside the job id: warnings, a message of the day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a scheduler says of a job that is not submitted."""

    starts_at: float | None = None
    """When it would start, in seconds since the epoch."""
    nodes: str = ""
    """Where, as a hostlist."""
    unknown: str | None = None
    """Why the scheduler did not tell, in its own words."""
    problems: tuple[Problem, ...] = ()
    """In what the job asks for more than it can get."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """What the scheduler (or, locally, the controller) says of a job."""

    state: JobState
    word: str = ""
    """The state in the scheduler's own word."""
    reason: str | None = None
    exit_code: int | None = None
    attempt: int = 0
    """The latest attempt that it knows of, where it counts them."""
    start: float | None = None
    """When it began, or is expected to, in seconds since the epoch; None where nobody says."""
    limit_s: int | None = None
    """How long it may run; None for no limit, and where nobody says."""


class Executor:
    """One way to run jobs; what is not overridden holds where no scheduler has to be asked."""

    ask_every_s = scaled(1.0, 0.5)
    """Seconds between two questions for the state of a running job while nothing changes in its
    folder: an end that only a scheduler knows of (a time limit, scancel) is noticed within 2 s."""
    unknown_timeout_s = scaled(60.0, 20.0)
    """How long a job may be unknown before that is the answer; a scheduler may be restarting."""
    absence = ""
    """Why a job is unknown of which nothing is known."""

    def check_limits(self, plan: LaunchPlan) -> bool:
        """Refuse a plan that cannot run there, with figures; pass where they cannot be had.

        Tell whether nodes may have to be started for it first.

        Raises:
            UserError: the plan asks for more than there is.
        """
        del plan
        return False

    def forecast(self, plan: LaunchPlan, script: str) -> Forecast | None:
        """Return when and where a job would start, and its limits; None where nobody can tell."""
        del plan, script
        return None

    def launch(self, plan: LaunchPlan, run: RunFolder, show: Show = untold) -> Launched:
        """Start the job whose files stand in `run`; its secret variables do not leave here.

        `show` is told in a few words how far that is.
        `submit_journal.hand_over` notes the last moment at which nothing can have been started.

        Raises:
            UserError: the run folder cannot be written.
            RefusalError: it was refused, in the words of whoever refused it.
            UnconfirmedError: nobody can tell whether it was accepted.
        """
        raise NotImplementedError

    def has_to_wait(self, dependencies: Dependencies) -> bool:
        """Tell whether a new job is queued; a scheduler needs no client for that."""
        return bool(dependencies.after)

    def queue(self, plan: LaunchPlan, run: RunFolder, dependencies: Dependencies) -> str:
        """Write into `run` what is needed to start the job later; return its job id.

        Raises:
            UserError: it cannot be written, or such a job cannot wait.
        """
        raise NotImplementedError

    def start_queued(self, run: RunFolder, submission: Submission) -> None:
        """Start a queued job.

        Raises:
            RemoteError: it cannot be started now, which is worth another try; or, where
                `state.json` says so, never.
            UserError: something in its folder cannot be read or written.
        """
        raise NotImplementedError

    def find_lost(
        self, runs: Mapping[RunFolder, Submission]
    ) -> Mapping[RunFolder, str | RemoteError | UserError]:
        """Return the ids of the jobs that belong to `runs`, where nobody wrote them down.

        An error stands for a run of which nobody can tell whether there is a job.

        Raises:
            RemoteError: nobody could be asked.
        """
        raise NotImplementedError

    def states(self, runs: Mapping[RunFolder, Submission]) -> Mapping[RunFolder, SchedulerState]:
        """Return the state of every job that is still known, asking once for all of them.

        Raises:
            RemoteError: nobody could be asked; that a job is not known is another answer.
        """
        raise NotImplementedError

    def fetch(self, run: RunFolder) -> None:
        """Bring what nodes have written into the run folder, where they do not write it there.

        Nodes are asked at most once a second, however often this is called.

        Raises:
            UserError: it cannot be written here.
        """

    def exit_code(self, run: RunFolder, submission: Submission) -> int | None:
        """Return the exit code that is held of an ended job, where no node has reported one."""
        del run, submission
        return None

    def restart(self, run: RunFolder, submission: Submission) -> None:
        """Do what a job that is to start again needs of a client, as long as one looks on.

        Nothing where another client is doing it, or where nobody has to.

        Raises:
            RemoteError: it cannot be started now; it is worth another try a little later.
            UserError: something is wrong with what it was given.
        """

    def cancel(self, run: RunFolder, submission: Submission) -> None:
        """Ask for the end of a job; one that has ended already is not an error.

        Raises:
            RemoteError: nobody could be asked.
        """
        raise NotImplementedError

    def lingering(self, runs: Mapping[RunFolder, Submission]) -> Collection[RunFolder]:
        """Return those of these jobs, which have ended, of which a process is known to be left.

        Raises:
            RemoteError: nobody could be asked.
        """
        raise NotImplementedError


def state_without_processes(
    run: RunFolder, submission: Submission, written: Path, timeout_s: float
) -> SchedulerState | None:
    """Return the state of a job that has, or has yet, no process; None where it is too old.

    `written` is what is written just before it is handed over: a queued job is an old one. It may
    be without a process for `timeout_s`.
    """
    if run.queued.exists():
        if run.cancelled.exists():
            return SchedulerState(state=JobState.CANCELLED, word="ended")
        return SchedulerState(state=JobState.PENDING, word=QUEUED)
    began_at = submission.submitted_at
    with suppress(OSError):
        began_at = max(began_at, written.stat().st_mtime)
    young = time.time() - began_at < timeout_s
    return SchedulerState(state=JobState.PENDING, word="starting") if young else None


def scrubbed_environment(hidden: Collection[str] = ()) -> dict[str, str]:
    """Return this process's environment without traces of another job, and without secrets.

    A submission from inside an allocation otherwise hands its CPU binding, node list and step
    settings down to the new job, and what that job was given of its own: its folder for flight
    records, its id in W&B. SLURM_CONF stays: without it, Slurm is not found.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT
        or not (
            _OF_ANOTHER_JOB.match(name)
            or name in hidden
            or value == os.environ.get(_DEFAULT + name)  # one that the job has changed is its own
        )
    }
