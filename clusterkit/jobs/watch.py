"""Wait for the end of a job, or bring it about."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from clusterkit.core import files
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import ClusterKind, JobState
from clusterkit.executors import executor_of
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.submission import fetch
from clusterkit.jobs.start_held import end_held, needs_client, tend
from clusterkit.jobs.state.load import Job, load_job

RESULTS_EVERY_S = 0.2
SCHEDULER_EVERY_S = {ClusterKind.LOCAL: 0.0, ClusterKind.SLURM: 1.0, ClusterKind.SSH: 5.0}
"""Where only the scheduler knows of an end (a time limit, scancel), it is noticed within 2 s, also
when the answer takes its time. Over ssh the nodes write down all ends but that of their keeper."""
UNKNOWN_PATIENCE_S = {ClusterKind.LOCAL: 2.0, ClusterKind.SLURM: 60.0, ClusterKind.SSH: 60.0}
"""How long a job may be unknown before that is the answer; a scheduler may be restarting."""
CANCEL_PATIENCE_S = 90.0
"""More than Slurm's KillWait (30 s) and the epilogue of most sites."""
GONE_PATIENCE_S = 20.0
"""How long the last processes of an ended job are waited for: an epilogue may take minutes."""
_GONE_EVERY_S = 0.3
TEND_EVERY_S = 3.0
_CANCEL = "end its job"


def patience_s(job: Job) -> float:
    """Return how long a job may be unknown before that is the answer."""
    scheduled = job.submission.kind is ClusterKind.SLURM
    if scheduled and job.submission.job_id is None and job.run.handing.exists():
        return math.inf  # soon after Slurm answers again it is found, or was never submitted
    return UNKNOWN_PATIENCE_S[job.submission.kind]


class Observer:
    """Look at a job often, and bother its scheduler seldom.

    The run folder is looked at on every call; the scheduler is asked when something has changed
    there, and every so often otherwise.
    """

    def __init__(self, run: RunFolder, *, tends: bool = False) -> None:
        """Observe the job in `run`; one that `tends` it starts it (again) where a client has to."""
        self.run = run
        self.tends = tends
        self.trouble = ""
        """Why it could not be started the last time that was tried."""
        self._tended_at = 0.0
        self._job: Job | None = None
        self._seen = 0
        self._asked_at = 0.0
        self._unknown_since: float | None = None

    def look(self) -> Job:
        """Return what is known of the job now."""
        if self._job is not None:
            with suppress(UserError):  # whose state cannot be told any more then, is told below
                fetch(self.run, self._job.submission)
        seen = count_results(self.run)
        now = time.monotonic()
        every_s = 0.0 if self._job is None else SCHEDULER_EVERY_S[self._job.submission.kind]
        if self._job is None or seen != self._seen or now - self._asked_at >= every_s:
            self._job = load_job(self.run)
            self._seen = seen
            self._asked_at = time.monotonic()  # an answer may take its time
        if self.tends and needs_client(self._job):
            self._tend(self._job)
        if self._job.status.state is not JobState.UNKNOWN:
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now
        return self._job

    def _tend(self, job: Job) -> None:
        if time.monotonic() - self._tended_at < TEND_EVERY_S:
            return
        self.trouble = tend([job]) or ""
        self._tended_at = time.monotonic()
        self._asked_at = 0.0

    @property
    def over(self) -> bool:
        """Whether nothing more will be learnt by looking again."""
        if self._job is None:
            return False
        if self._unknown_since is not None:
            return time.monotonic() - self._unknown_since >= patience_s(self._job)
        return self._job.status.state.final


def count_results(run: RunFolder) -> int:
    """Return how much the nodes of a job have written down; it grows when there is news."""
    return files.count(run.nodes) + files.count(run.ends)


def wait(
    run: RunFolder,
    *,
    poll_s: float = RESULTS_EVERY_S,
    changed: Callable[[Job], None] | None = None,
    troubled: Callable[[str], None] | None = None,
) -> Job:
    """Return the job once it is over, or has been unknown for too long; start it (again) meanwhile.

    `changed` hears of new states, and `troubled` why the job cannot be started again yet.

    Raises:
        UserError: it is a run of somebody else, and not over.
    """
    if run.foreign is not None and not load_job(run).status.state.final:
        run.require_own("wait for its job, which may have to be started or fetched")
    observer = Observer(run, tends=True)
    last: JobState | None = None
    trouble = ""
    while True:
        job = observer.look()
        if changed is not None and job.status.state is not last:
            changed(job)
        last = job.status.state
        if troubled is not None and observer.trouble not in {"", trouble}:
            troubled(observer.trouble)
        trouble = observer.trouble or trouble
        if observer.over:
            return job
        time.sleep(poll_s)


def cancel(run: RunFolder, *, timeout_s: float = CANCEL_PATIENCE_S) -> Job:
    """End the job, wait until it is over, and return it; one that is over stays as it is.

    Raises:
        UserError: it is a run of somebody else.
        RemoteError: nobody could be asked to end it, or it did not end in time.
    """
    run.require_own(_CANCEL)
    job = load_job(run)
    if job.status.state.final:
        return job
    # First, so that whoever starts or ends the job from here on knows why.
    files.create_text(run.cancelled, "")
    if not end_held(run):
        try:
            executor_of(run, job.submission, use=_CANCEL).cancel(run, job.submission)
        except RemoteError:
            # Of a job that only waits to start again, a node may have gone for good.
            if not (job := load_job(run)).status.state.final:
                raise
            return job
    observer = Observer(run)
    deadline = time.monotonic() + timeout_s
    while not (job := observer.look()).status.state.final:
        if time.monotonic() > deadline or observer.over:
            name = job.submission.job_id or run.run_id
            raise RemoteError(
                f"{name} was asked to end and is still {job.status.state.value}",
                hint=f"look again: clusterkit status {name}",
            )
        time.sleep(RESULTS_EVERY_S)
    await_gone([job])
    return job


def await_gone(jobs: Iterable[Job]) -> None:
    """Wait until no process of jobs that were ended is left; who cannot be asked is not waited for.

    Nodes report before the last of their processes has ended: srun, the worker, the keeper.
    """
    deadline = time.monotonic() + GONE_PATIENCE_S
    left: dict[ClusterKind, dict[RunFolder, Submission]] = {}
    for job in jobs:
        left.setdefault(job.submission.kind, {})[job.run] = job.submission
    for runs in left.values():
        executor = executor_of(*next(iter(runs.items())), use=_CANCEL)
        there: Collection[RunFolder] = runs
        with suppress(RemoteError, UserError):
            while there := executor.lingering({run: runs[run] for run in there}):
                if time.monotonic() > deadline:
                    return
                time.sleep(_GONE_EVERY_S)
