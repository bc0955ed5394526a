"""A job as submitit knows jobs, whose state comes from its run folder and not from a scheduler."""

from __future__ import annotations

from typing import Any

from submitit.core import core

from clusterkit import files
from clusterkit.executors.base import SchedulerState
from clusterkit.executors.submission import executor_for
from clusterkit.runfolder import KEY_LENGTH, RunFolder, Submission, read_submission

RUNS = "runs"
"""In submitit's folder: the run folders of jobs that are no training."""


class RunJob(core.Job[Any]):
    """A job with a run folder of ours."""

    @property
    def run_folder(self) -> RunFolder:
        """The folder of the run: the one around submitit's, or one of those in it.

        Raises:
            FileNotFoundError: it has been removed.
        """
        folder, key = self.paths.folder, self.job_id[-KEY_LENGTH:]
        if folder.parent.name.endswith(f"-{key}"):
            return RunFolder(folder.parent)
        found = next(folder.glob(f"{RUNS}/*-{key}"), None)
        if found is None:
            raise FileNotFoundError(f"no run of job {self.job_id} in {folder / RUNS}")
        return RunFolder(found)

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
        """Tell whether the job has ended."""
        del force_check
        return self.state not in {"PENDING", "RUNNING"}

    def cancel(self, check: bool = True) -> None:
        """End the job."""
        del check
        submission = self._submission()
        if submission is not None:
            files.create_text(self.run_folder.cancelled, "")
            executor_for(submission.kind).cancel(self.run_folder, submission)

    def _known(self) -> SchedulerState | None:
        submission = self._submission()
        if submission is None:
            return None
        run = self.run_folder
        return executor_for(submission.kind).states({run: submission}).get(run)

    def _submission(self) -> Submission | None:
        return read_submission(self.run_folder)
