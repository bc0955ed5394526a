"""A job as submitit knows jobs, whose state comes from its run folder and not from a scheduler."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from submitit.core import core
from submitit.core.utils import DelayedSubmission, JobPaths

from clusterkit.core import files, ownership
from clusterkit.core.model import JobState
from clusterkit.executors.base import SchedulerState
from clusterkit.executors.run.pickles import kept_private, load_own
from clusterkit.executors.run.runfolder import KEY_LENGTH, RunFolder, Submission, read_submission
from clusterkit.executors.submission import executor_of

RUNS = "runs"
"""In submitit's folder: the run folders of jobs that are no training."""


_NOT_YET = frozenset({JobState.PENDING.upper(), JobState.RUNNING.upper()})
_ASK_EVERY_S = 5.0
"""Where no file tells of an end, which is nearly always."""
_UNKNOWN_PATIENCE_S = 60.0


class RunJob(core.Job[Any]):
    """A job with a run folder of ours."""

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        """Know the job by submitit's folder and its id."""
        super().__init__(folder, job_id, tasks)
        self._state: str | None = None
        self._seen = 0
        self._asked_at = self._known_at = time.monotonic()

    @property
    def run_folder(self) -> RunFolder:
        """The folder of the run: the one around submitit's, or one of those in it.

        Raises:
            FileNotFoundError: it has been removed.
        """
        folder, key = self.paths.folder, self.job_id[-KEY_LENGTH:]
        if folder.parent.name.endswith(f"-{key}"):
            return RunFolder(folder.parent)
        for above in (folder, *folder.parents):  # submitit's folder may have the job id in it
            found = next(above.glob(f"{RUNS}/*-{key}"), None)
            if found is not None:
                return RunFolder(found)
        raise FileNotFoundError(f"no run of job {self.job_id} in {folder / RUNS}")

    def _register_in_watcher(self) -> None:
        """Stay out of submitit's watcher, which asks a scheduler."""

    @property
    def state(self) -> str:
        """State in submitit's spelling."""
        known = self._known()
        return known.state.upper() if known is not None else "UNKNOWN"

    def get_info(self, mode: str = "force") -> dict[str, str]:
        """Return what is known of the job."""
        del mode
        return {"State": self.state}

    def done(self, force_check: bool = False) -> bool:
        """Tell whether the job has ended; nobody is asked twice within a few seconds."""
        now, run = time.monotonic(), self.run_folder
        seen = files.count(run.ends) + run.ended.exists()
        due = seen != self._seen or now - self._asked_at >= _ASK_EVERY_S
        if force_check or self._state is None or due:
            self._state, self._seen = self.state, seen
            self._asked_at = now
            known = self._state != JobState.UNKNOWN.upper()
            self._known_at = now if known else self._known_at
        if self._state in _NOT_YET:
            return False
        # A node may be slow to answer once; what nobody knows for a minute is over.
        unknown = self._state == JobState.UNKNOWN.upper()
        return not unknown or now - self._known_at >= _UNKNOWN_PATIENCE_S

    def cancel(self, check: bool = True) -> None:
        """End the job."""
        del check
        submission = self._submission()
        if submission is not None:
            run = self.run_folder
            executor = executor_of(run, submission, use="end its job")
            files.create_text(run.cancelled, "")
            executor.cancel(run, submission)

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        """Return what the call has come to, if nobody else can have written that.

        Raises:
            UserError: somebody else can.
        """
        path, deadline = self.paths.result_pickle, time.monotonic() + self._results_timeout_s
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.5)
        if not path.exists():
            return super()._get_outcome_and_result()  # says why
        return cast("tuple[str, Any]", load_own(path))

    def _known(self) -> SchedulerState | None:
        submission = self._submission()
        if submission is None:
            return None
        run = self.run_folder
        executor = executor_of(run, submission, use="ask for its job")
        return executor.states({run: submission}).get(run)

    def _submission(self) -> Submission | None:
        return read_submission(self.run_folder)


class DirectExecutor(core.PicklingExecutor):
    """An executor of submitit that starts jobs by itself: no file and no command is asked of it."""

    job_class = RunJob

    def _internal_process_submissions(
        self, delayed_submissions: list[DelayedSubmission]
    ) -> list[core.Job[Any]]:
        """Submit calls whose pickles nobody else can write."""
        folder = JobPaths.get_first_id_independent_folder(self.folder)
        files.create_folder(folder)
        ownership.require_own(folder, use="keep pickles in it, which run as you")
        jobs: list[core.Job[Any]] = super()._internal_process_submissions(
            kept_private(delayed_submissions)
        )
        return jobs

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        del command, uid
        return ""

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        del submission_file_path
        return []

    @staticmethod
    def _get_job_id_from_submission_command(string: str | bytes) -> str:
        return string if isinstance(string, str) else string.decode()
