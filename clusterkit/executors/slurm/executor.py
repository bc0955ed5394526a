"""Jobs on Slurm: submitted through submitit, watched by squeue, with or without accounting."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module

from clusterkit.core.commands import run_command
from clusterkit.core.errors import RemoteError
from clusterkit.core.model import JobState, LaunchPlan
from clusterkit.executors.base import Launched, SchedulerState
from clusterkit.executors.run import submit_journal
from clusterkit.executors.run.dependencies import waiting_for
from clusterkit.executors.run.runfolder import RunFolder, Submission, read_submission
from clusterkit.executors.slurm import limits, lost_jobs, requeue
from clusterkit.executors.slurm import states as slurm_states
from clusterkit.executors.slurm.states import SCRIPT, Wanted

_IN_FLIGHT_S = 8.0
"""How long `cancel` waits for the id. Afterwards the client that submits, or the job itself when it
starts, finds it cancelled."""
_GONE = ("invalid job id", "already completed", "job/step already completing or completed")


@dataclass(frozen=True, slots=True)
class SlurmJobs:
    """The executor of kind `slurm`."""

    def check_limits(self, plan: LaunchPlan) -> None:
        """Refuse what the partition cannot give; sbatch would let some of it wait forever."""
        with ThreadPoolExecutor(1) as pool:
            checking = pool.submit(limits.check, plan)
            import_module("clusterkit.executors.slurm.submitit")  # needed next, while Slurm answers
            checking.result()

    def launch(
        self,
        plan: LaunchPlan,
        run: RunFolder,
        *,
        hidden: Collection[str],
        handing_over: Callable[[], None],
    ) -> Launched:
        """Hand the rendered script to sbatch."""
        from clusterkit.executors.slurm import submitit  # noqa: PLC0415 - submitit loads slowly

        return submitit.launch(plan, run, hidden=hidden, handing_over=handing_over)

    def find_lost(self, runs: Mapping[RunFolder, Submission]) -> Mapping[RunFolder, str]:
        """Return the jobs that were submitted from these run folders."""
        return lost_jobs.find(runs)

    def states(self, runs: Mapping[RunFolder, Submission]) -> Mapping[RunFolder, SchedulerState]:
        """Return what Slurm says of these jobs, in one question for all of them."""
        wanted = {
            submission.job_id: Wanted.of(run, submission)
            for run, submission in runs.items()
            if submission.job_id is not None
        }
        found = slurm_states.query(wanted)
        return {
            run: _named(found[submission.job_id], submission)
            for run, submission in runs.items()
            if submission.job_id in found
        }

    def fetch(self, run: RunFolder) -> None:
        """Do nothing: the nodes write into the run folder itself."""

    def exit_code(self, run: RunFolder, submission: Submission) -> int | None:
        """Return the exit code of the batch script, while Slurm holds it."""
        del run
        return slurm_states.exit_code_of(submission.job_id) if submission.job_id else None

    def tend(self, run: RunFolder, submission: Submission) -> None:
        """Tell Slurm which nodes the waiting job is not to get again."""
        if submission.job_id is not None:
            requeue.leave_out(run, submission)

    def cancel(self, run: RunFolder, submission: Submission) -> None:
        """Ask Slurm to end the job; one that it no longer knows has ended.

        A job without an id is ended by whoever finds it, or by itself when it starts.
        """
        try:
            job_id = submission.job_id or self._await_job_id(run, submission)
        except RemoteError as error:
            later = "it ends as soon as one finds it, or when it starts"
            hint = f"once Slurm answers, clusterkit status {run.key}, or cancel again: {later}"
            raise RemoteError(error.message, hint=hint) from error
        if job_id is None:
            return
        answer = run_command(["scancel", job_id])
        if answer.code == 0 or any(word in answer.errors.lower() for word in _GONE):
            return
        raise RemoteError(
            f"scancel {job_id}: {answer.errors.strip() or 'failed'}",
            hint=f"try again, or: scancel {job_id}",
        )

    def lingering(self, runs: Mapping[RunFolder, Submission]) -> Collection[RunFolder]:
        """Return the jobs with which Slurm is not through: a step or the batch script is left."""
        return {run for run, said in self.states(runs).items() if not said.state.final}

    def _await_job_id(self, run: RunFolder, submission: Submission) -> str | None:
        """Wait for the job of an sbatch that may still be on its way."""
        noted = submit_journal.read(run)
        under_way = noted is not None and submit_journal.is_under_way(run, noted, SCRIPT)
        deadline = time.monotonic() + (_IN_FLIGHT_S if under_way else 0.0)
        while (job_id := self.find_lost({run: submission}).get(run)) is None:
            known = read_submission(run)
            if known is not None and known.job_id is not None:
                return known.job_id
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        return job_id


def _named(said: SchedulerState, submission: Submission) -> SchedulerState:
    """Name the jobs that a job waits for, where Slurm says `Dependency`."""
    if said.reason != "Dependency" or not submission.after:
        return said
    waits = said.state is JobState.PENDING
    return replace(said, reason=waiting_for(submission.after) if waits else None)


EXECUTOR = SlurmJobs()
