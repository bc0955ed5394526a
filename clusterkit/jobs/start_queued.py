"""What clients that look on do for jobs: start those held for others, and those to start again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from clusterkit.core import files
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import JobState
from clusterkit.executors import executor_of
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.attempts import may_follow
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.state.load import Job, states_of

_STARTS_AT_ONCE = 16
"""Held jobs that are started before anybody hears of news again; each takes a second or two."""


def is_queued(job: Job) -> bool:
    """Tell whether the job has to wait for others until a client starts it."""
    return job.status.state is JobState.PENDING and job.run.queued.exists()


def needs_client(job: Job) -> bool:
    """Tell whether the next start of the job is up to a client."""
    return job.status.state is JobState.REQUEUED or is_queued(job)


def may_need_client(run: RunFolder) -> bool:
    """Tell from its folder alone whether a start of the job, now or later, is up to a client."""
    submission = runfolder.read_submission(run)
    if submission is None or run.state.exists():
        return False
    attempts_left = may_follow(submission, node_results.latest_attempt(run))
    return run.queued.exists() or (submission.kind.lists_hosts and attempts_left)


def start_due(jobs: Iterable[Job]) -> str | None:
    """Start those jobs that a client has to start, and may; return what kept the first from it.

    Of held jobs no other is tried after one that nodes did not take: most likely they want the same
    slots, and a client is not to knock at each node a hundred times.
    """
    jobs = list(jobs)
    problem = _release([job for job in jobs if is_queued(job)])
    for job in jobs:
        if job.status.state is JobState.REQUEUED:
            try:
                executor = executor_of(job.run, job.submission, use="start its job")
                executor.restart(job.run, job.submission)
            except (RemoteError, UserError) as error:
                problem = problem or str(error)
    return problem


def ready(jobs: Iterable[Job]) -> list[Job]:
    """Return those of the held jobs whose time has come."""
    held = [job for job in jobs if is_queued(job)]
    states = _states_before(held)
    return [job for job in held if _may_start(job, states)]


def _states_before(held: Iterable[Job]) -> dict[str, JobState]:
    """Return the states of all jobs that these wait for, by their run folders."""
    before = {Path(one.run_dir) for job in held for one in job.submission.after}
    return states_of(RunFolder(path) for path in before)


def _may_start(job: Job, states: Mapping[str, JobState]) -> bool:
    return all(
        one.is_met(states.get(one.run_dir, JobState.UNKNOWN)) for one in job.submission.after
    )


def _release(held: list[Job]) -> str | None:
    states = _states_before(held)
    may_start = [job for job in held if _may_start(job, states)]
    problem = None
    for job in may_start[:_STARTS_AT_ONCE]:
        try:
            _start(job)
        except UserError as error:
            problem = problem or f"{job.submission.job_id} waits: {error}"
        except RemoteError as error:
            return problem or f"{job.submission.job_id} waits: {error}"
    if problem is not None:
        return problem
    for job in held:
        for one in job.submission.after:
            if states.get(one.run_dir) is JobState.UNKNOWN:
                return f"{job.submission.job_id} waits: nobody can tell how {one.job_id} ends"
    return None


def end_queued(run: RunFolder) -> bool:
    """Tell whether a job that is marked as cancelled is over with that: nothing was started.

    A client that is just starting it holds the lock; what it starts has to be ended.
    """
    run.require_own("end its job")
    if not run.queued.exists():
        return False
    with files.locked(run.starting) as mine:
        return mine and run.queued.exists()


def _start(job: Job) -> None:
    """Start one job, unless another client does, or just has, or it was cancelled."""
    run = job.run
    executor = executor_of(run, job.submission, use="start its job")
    with files.locked(run.starting) as mine:
        there = runfolder.listed(run.path)  # not what a network file system remembers
        over = {run.cancelled.name, run.state.name} & there
        if mine and not over and run.queued.name in there:
            executor.start_queued(run, job.submission)
