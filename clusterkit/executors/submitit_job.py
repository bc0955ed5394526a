"""The submitit side of every kind of job: its pickles, its Job, and the task of a planned job.

A job's state comes from its run folder and its executor, not from submitit's watcher of schedulers.
Pickles are programs: they are written for nobody else, and read only where nobody else wrote;
submitit would write them as the umask has it, and read what is there.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import cloudpickle  # type: ignore[import-untyped]
from submitit.core import core, utils

from clusterkit.core import files, ownership, permissions
from clusterkit.core.model import JobState
from clusterkit.core.timing import scaled
from clusterkit.executors.base import SchedulerState
from clusterkit.executors.node import LaunchTask
from clusterkit.executors.run.runfolder import KEY_LENGTH, RunFolder, Submission, read_submission
from clusterkit.executors.submission import executor_for, executor_of

RUNS = "runs"
"""In submitit's folder: the run folders of jobs that are no training."""

_NOT_YET = frozenset({JobState.PENDING.upper(), JobState.RUNNING.upper()})
_ASK_EVERY_S = scaled(5.0, 1.0)
"""Where no file tells of an end, which is nearly always."""
_UNPICKLE = "unpickle it: that runs what it says"


def dump_private(obj: Any, filename: str | Path) -> None:
    """Pickle a value into a file that is new, readable by the owner only."""
    with os.fdopen(permissions.open_new(Path(filename), permissions.PRIVATE), "wb") as stream:
        cloudpickle.dump(obj, stream, pickle.HIGHEST_PROTOCOL)


def load_own(filename: str | Path) -> Any:
    """Return the value in a pickle.

    Raises:
        UserError: somebody else can write the file, or its folder.
        OSError: it cannot be read.
    """
    path = Path(filename)
    ownership.require_own(path.parent, use=_UNPICKLE)
    with (
        ownership.open_own(path, use=_UNPICKLE) as descriptor,
        os.fdopen(os.dup(descriptor), "rb") as stream,
    ):
        return pickle.load(stream)  # noqa: S301 - nobody else has written it


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
        around = RunFolder(folder.parent)
        if folder == around.submitit and around.submission.exists():
            return around
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
        unknown, submission = self._state == JobState.UNKNOWN.upper(), read_submission(run)
        timeout_s = executor_for(submission.kind).unknown_timeout_s if submission else 0.0
        return not unknown or now - self._known_at >= timeout_s

    def cancel(self, check: bool = True) -> None:
        """End the job."""
        del check
        run, submission = self.run_folder, self._submission()
        if submission is not None:
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
        run, submission = self.run_folder, self._submission()
        if submission is None:
            return None
        executor = executor_of(run, submission, use="ask for its job")
        return executor.states({run: submission}).get(run)

    def _submission(self) -> Submission | None:
        return read_submission(self.run_folder)


def write_task(run: RunFolder, job_id: str = "") -> Path:
    """Pickle the task of `run` for the job of this id, empty where it is not known; return where.

    Raises:
        UserError: it cannot be written.
    """
    path = run.submitit / (f"{job_id}_submitted.pkl" if job_id else "task.pkl")
    task = cloudpickle.dumps(utils.DelayedSubmission(LaunchTask(str(run.path))))
    files.write_bytes(path, task, mode=files.PRIVATE)
    return path
