"""Wait for many jobs, or end them, asking each scheduler once for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from clusterkit.core import files
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import JobState
from clusterkit.executors import executor_of
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.start_held import end_held, is_held, needs_client, ready, tend
from clusterkit.jobs.state.load import Job, load_jobs
from clusterkit.jobs.watch import (
    CANCEL_PATIENCE_S,
    RESULTS_EVERY_S,
    SCHEDULER_EVERY_S,
    TEND_EVERY_S,
    await_gone,
    count_results,
    patience_s,
)

_BUSY_PAUSE_S = 15.0


class Watch:
    """Look at many jobs again and again, and only at those that are not over."""

    def __init__(self, runs: Iterable[RunFolder]) -> None:
        """Watch the jobs in `runs`, which keep their order."""
        self.jobs: dict[RunFolder, Job] = {}
        self._open = list(runs)
        self._order = list(self._open)
        self._seen = -1
        self._asked_at = 0.0
        self._unknown_since: dict[RunFolder, float] = {}

    def look(self) -> list[Job]:
        """Return every job with what is known of it now, those that changed state among them."""
        now = time.monotonic()
        seen = sum(count_results(run) for run in self._open)
        if seen == self._seen and now - self._asked_at < self._every_s():
            return []
        self._seen = seen
        news = []
        for job in load_jobs(self._open):
            before = self.jobs.get(job.run)
            self.jobs[job.run] = job
            if before is None or before.status.state is not job.status.state:
                news.append(job)
        self._asked_at = time.monotonic()
        self._open = [run for run in self._open if not self._over(run)]
        return news

    def refresh(self) -> None:
        """Ask everybody at the next look: something was done."""
        self._seen = -1

    @property
    def open(self) -> list[Job]:
        """The jobs that are not over."""
        return [self.jobs[run] for run in self._open if run in self.jobs]

    @property
    def given_up(self) -> bool:
        """Whether a job has been unknown for so long that nobody will learn more of it."""
        over = self.jobs.keys() - set(self._open)
        return any(self.jobs[run].status.state is JobState.UNKNOWN for run in over)

    @property
    def all(self) -> list[Job]:
        """All jobs that could be read, in their order."""
        return [self.jobs[run] for run in self._order if run in self.jobs]

    def _every_s(self) -> float:
        kinds = {job.submission.kind for job in self.jobs.values()}
        return max((SCHEDULER_EVERY_S[kind] for kind in kinds), default=0.0) or RESULTS_EVERY_S

    def _over(self, run: RunFolder) -> bool:
        job = self.jobs.get(run)
        if job is None:  # its folder has been removed
            return True
        if job.status.state is not JobState.UNKNOWN:
            self._unknown_since.pop(run, None)
            return job.status.state.final
        since = self._unknown_since.setdefault(run, time.monotonic())
        return time.monotonic() - since >= patience_s(job)


def wait_for_all(
    runs: Sequence[RunFolder],
    *,
    changed: Callable[[Job], None],
    troubled: Callable[[str], None],
) -> list[Job]:
    """Return the jobs once all of them are over, or unknown for too long; start them meanwhile.

    `changed` hears of new states, and `troubled` why one that may start cannot be started yet.
    """
    watch = Watch(runs)
    tended_at, trouble = 0.0, ""
    while True:
        news = watch.look()
        for job in news:
            changed(job)
        if not watch.open:
            return watch.all
        # With all slots taken it is the end of a job that changes that, and most are seen here.
        pause_s = _BUSY_PAUSE_S if trouble else TEND_EVERY_S
        due = bool(news) or time.monotonic() - tended_at >= pause_s
        if due and any(map(needs_client, watch.open)):
            before, trouble = trouble, tend(watch.open) or ""
            if trouble not in {"", before}:
                troubled(trouble)
            tended_at = time.monotonic()
            watch.refresh()
            if watch.given_up and all(map(is_held, watch.open)) and not ready(watch.open):
                return watch.all  # they wait for a job of which nobody will learn any more
        time.sleep(RESULTS_EVERY_S)


def cancel_all(
    runs: Sequence[RunFolder], *, timeout_s: float = CANCEL_PATIENCE_S
) -> tuple[list[Job], list[str]]:
    """End all of these jobs; return them, and what went wrong with any.

    Those that have not started end first, from the last one on, so that none of them starts because
    another one has ended.
    """
    for run in runs:
        run.require_own("end its job")
    jobs = [job for job in load_jobs(runs) if not job.status.state.final]
    for job in jobs:
        files.create_text(job.run.cancelled, "")
    jobs.sort(key=lambda job: job.status.state is JobState.PENDING)
    troubles = []
    for job in reversed(jobs):
        try:
            if not end_held(job.run):
                executor = executor_of(job.run, job.submission, use="end its job")
                executor.cancel(job.run, job.submission)
        except (RemoteError, UserError) as error:
            troubles.append(f"{job.submission.job_id or job.run.run_id}: {error}")
    watch = Watch(runs)
    deadline = time.monotonic() + timeout_s
    watch.look()
    while watch.open and time.monotonic() < deadline and not troubles:
        time.sleep(RESULTS_EVERY_S)
        watch.look()
    asked = {job.run for job in jobs}
    await_gone([job for job in watch.all if job.run in asked and job.status.state.final])
    troubles += [
        f"{job.submission.job_id or job.run.run_id} was asked to end and is still "
        f"{job.status.state.value}"
        for job in watch.open
    ]
    return watch.all, troubles
