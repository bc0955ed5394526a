"""Wait for the end of jobs, or bring it about, asking each scheduler once for all of them.

How the end of a job is noticed: `Watch` looks at the run folders, and asks the
schedulers every `ask_every_s` of the executor; `state/conclude.py` makes a state of the answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from clusterkit.core import files
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import ClusterKind, JobState
from clusterkit.core.timing import scaled
from clusterkit.executors import executor_for, executor_of
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.submission import fetch
from clusterkit.jobs.start_queued import end_queued, is_queued, needs_client, ready, start_due
from clusterkit.jobs.state.load import Job, load_job, load_jobs

RESULTS_EVERY_S = 0.2
CANCEL_TIMEOUT_S = 90.0
"""More than Slurm's KillWait (30 s) and the epilogue of most sites."""
_GONE_TIMEOUT_S = 20.0
"""How long the last processes of an ended job are waited for: an epilogue may take minutes."""
_GONE_EVERY_S = 0.3
_START_EVERY_S = scaled(3.0, 0.6)
_BUSY_EVERY_S = scaled(15.0, 3.0)
"""How seldom starting is tried while all slots are taken; an end seen here tries it at once."""
_CANCEL = "end its job"


class Watch:
    """Look at jobs often, and bother their schedulers seldom.

    The run folders are looked at on every call; the schedulers are asked when something has changed
    there, and every so often otherwise.
    """

    def __init__(self, *runs: RunFolder, starts: bool = False) -> None:
        """Watch the jobs in `runs`; one that `starts` them does so where a client has to."""
        self.jobs: dict[RunFolder, Job] = {}
        """All jobs that could be read, in the order of `runs`."""
        self.problem = ""
        """Why a job could not be started the last time that was tried."""
        self._left = list(runs)
        self._order = runs
        self._starts = starts
        self._started_at = -math.inf
        self._seen = -1
        self._asked_at = 0.0
        self._unknown_since: dict[RunFolder, float] = {}

    def look(self) -> list[Job]:
        """Return the jobs that have changed their states.

        A single job also counts as changed when it is pending for another reason, or hangs.

        Raises:
            UserError: the folder of the only job cannot be read any more.
        """
        changed = self._load() if self._left else []
        pause_s = _BUSY_EVERY_S if self.problem and len(self._order) > 1 else _START_EVERY_S
        due = bool(changed) or time.monotonic() - self._started_at >= pause_s
        if self._starts and due and any(map(needs_client, self.open)):
            self.problem = start_due(self.open) or ""
            self._started_at = time.monotonic()
            self._seen = -1
        return changed

    def _load(self) -> list[Job]:
        if len(self._left) == 1 and (job := self.jobs.get(self._left[0])) is not None:
            with suppress(UserError):  # whose state cannot be told any more then, is told below
                fetch(job.run, job.submission)
        # How much nodes have written down: it grows when there is news.
        seen = sum(files.count(run.nodes) + files.count(run.ends) for run in self._left)
        if seen == self._seen and time.monotonic() - self._asked_at < self._every_s():
            return []
        self._seen = seen
        only = len(self._order) == 1
        changed = []
        found = {
            job.run: job for job in ([load_job(*self._left)] if only else load_jobs(self._left))
        }
        for run, job in found.items():
            before = self.jobs.get(run)
            if before is None or _has_changed(before, job, reason=only):
                changed.append(job)
            if job.status.state is JobState.UNKNOWN:
                self._unknown_since.setdefault(run, time.monotonic())
            else:
                self._unknown_since.pop(run, None)
        known = self.jobs | found
        self.jobs = {run: known[run] for run in self._order if run in known}
        self._asked_at = time.monotonic()  # an answer may take its time
        self._left = [run for run, job in found.items() if not job.status.state.final]
        return changed

    def _every_s(self) -> float:
        kinds = {self.jobs[run].submission.kind for run in self._left if run in self.jobs}
        return max((executor_for(kind).ask_every_s for kind in kinds), default=0.0)

    @property
    def job(self) -> Job:
        """The first of the jobs."""
        return next(iter(self.jobs.values()))

    @property
    def open(self) -> list[Job]:
        """The jobs that are not over, nor unknown for so long that nobody will learn more."""
        now = time.monotonic()
        return [
            job
            for run in self._left
            if (job := self.jobs.get(run)) is not None
            and now - self._unknown_since.get(run, now) < _unknown_timeout_s(job)
        ]

    @property
    def over(self) -> bool:
        """Whether nothing more will be learnt by looking again."""
        return bool(self.jobs) and not self.open

    @property
    def stuck(self) -> bool:
        """Whether all jobs that are left wait for one of which nobody will learn any more."""
        left = self.open
        unknown = any(job.status.state is JobState.UNKNOWN for job in self.jobs.values())
        return unknown and bool(left) and all(map(is_queued, left)) and not ready(left)


def _has_changed(before: Job, job: Job, *, reason: bool) -> bool:
    """Tell whether the state is another one, or the `reason` why the job is pending, or hangs.

    A single job has changed as well once it is known when it starts; that moment moves often.
    """
    then, now = before.status, job.status
    told = reason and now.state in {JobState.PENDING, JobState.RUNNING}
    planned = now.expected_at is not None and then.expected_at is None
    return now.state is not then.state or (told and (planned or now.reason != then.reason))


def _unknown_timeout_s(job: Job) -> float:
    """Return how long a job may be unknown before that is the answer."""
    scheduled = job.submission.kind.scheduled
    if scheduled and job.submission.job_id is None and job.run.handing.exists():
        return math.inf  # soon after Slurm answers again it is found, or was never submitted
    return executor_for(job.submission.kind).unknown_timeout_s


def wait(
    run: RunFolder,
    *,
    changed: Callable[[Job], None] = lambda _: None,
    on_problem: Callable[[str], None] = lambda _: None,
    on_look: Callable[[Sequence[Job]], None] = lambda _: None,
) -> Job:
    """Return the job once it is over, or has been unknown for too long; start it meanwhile.

    `changed` hears of new states, `on_problem` why the job cannot be started (again) yet, and
    `on_look` of the job several times a second.

    Raises:
        UserError: it is a run of somebody else, and not over.
    """
    (job,) = wait_for_all([run], changed=changed, on_problem=on_problem, on_look=on_look)
    return job


def wait_for_all(
    runs: Sequence[RunFolder],
    *,
    changed: Callable[[Job], None],
    on_problem: Callable[[str], None],
    on_look: Callable[[Sequence[Job]], None] = lambda _: None,
) -> list[Job]:
    """Return the jobs once all of them are over, or unknown for too long; start them meanwhile.

    `changed` hears of new states, `on_problem` why one that may start cannot be started yet, and
    `on_look` of all jobs several times a second.

    Raises:
        UserError: one is a run of somebody else, and not over.
    """
    for run in runs:
        if run.foreign is not None and not load_job(run).status.state.final:
            run.require_own("wait for its job, which may have to be started or fetched")
    watch = Watch(*runs, starts=True)
    reported = ""
    while True:
        for job in watch.look():
            changed(job)
        if watch.problem not in {"", reported}:
            on_problem(watch.problem)
        reported = watch.problem or reported
        if not watch.open or watch.stuck:
            return list(watch.jobs.values())
        on_look(tuple(watch.jobs.values()))
        time.sleep(RESULTS_EVERY_S)


def cancel(run: RunFolder, *, timeout_s: float = CANCEL_TIMEOUT_S) -> Job:
    """End the job, wait until it is over, and return it; one that is over stays as it is.

    Raises:
        UserError: it is a run of somebody else.
        RemoteError: nobody could be asked to end it, or it did not end in time.
    """
    run.require_own(_CANCEL)
    job = load_job(run)
    if job.status.state.final:
        return job
    watch, errors = _end([run], timeout_s)
    for error in errors.values():
        raise error
    for job in watch.open or ([] if watch.job.status.state.final else [watch.job]):
        name = job.submission.job_id or run.run_id
        raise RemoteError(_not_ended(job), hint=f"look again: clusterkit status {name}")
    return watch.job


def cancel_all(
    runs: Sequence[RunFolder], *, timeout_s: float = CANCEL_TIMEOUT_S
) -> tuple[list[Job], list[str]]:
    """End all of these jobs; return them, and what went wrong with any."""
    for run in runs:
        run.require_own(_CANCEL)
    watch, errors = _end(runs, timeout_s)
    names = {job.run: job.submission.job_id or job.run.run_id for job in watch.jobs.values()}
    failed = [f"{names.get(run, run.run_id)}: {error}" for run, error in errors.items()]
    return list(watch.jobs.values()), failed + list(map(_not_ended, watch.open))


def _not_ended(job: Job) -> str:
    name = job.submission.job_id or job.run.run_id
    return f"{name} was asked to end and is still {job.status.state.value}"


def _end(
    runs: Sequence[RunFolder], timeout_s: float
) -> tuple[Watch, dict[RunFolder, RemoteError | UserError]]:
    """End jobs, and watch them until they are over; return also who could not be told, and why.

    Those that have not started end first, from the last one on, so that none of them starts because
    another one has ended.
    """
    jobs = [job for job in load_jobs(runs) if not job.status.state.final]
    for job in jobs:
        # First, so that whoever starts or ends the job from here on knows why.
        files.create_text(job.run.cancelled, "by `clusterkit cancel`")
    jobs.sort(key=lambda job: job.status.state is JobState.PENDING)
    errors: dict[RunFolder, RemoteError | UserError] = {}
    for job in reversed(jobs):
        try:
            if not end_queued(job.run):
                executor = executor_of(job.run, job.submission, use=_CANCEL)
                executor.cancel(job.run, job.submission)
        except (RemoteError, UserError) as error:
            errors[job.run] = error
    watch = Watch(*runs)
    deadline = time.monotonic() + timeout_s
    watch.look()
    while watch.open and time.monotonic() < deadline and not errors:
        time.sleep(RESULTS_EVERY_S)
        watch.look()
    # Of a job that only waits to start again, a node may have gone for good.
    over = {job.run for job in watch.jobs.values() if job.status.state.final}
    _await_gone([watch.jobs[job.run] for job in jobs if job.run in over - errors.keys()])
    return watch, {run: error for run, error in errors.items() if run not in over}


def _await_gone(jobs: Iterable[Job]) -> None:
    """Wait until no process of jobs that were ended is left; who cannot be asked is not waited for.

    Nodes report before the last of their processes has ended: srun, the worker, the node agent.
    """
    deadline = time.monotonic() + _GONE_TIMEOUT_S
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
