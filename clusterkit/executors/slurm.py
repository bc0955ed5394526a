"""Jobs on Slurm: submitted through submitit, watched by squeue, with or without accounting."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from clusterkit.errors import RemoteError
from clusterkit.executors import slurm_limits, slurm_states
from clusterkit.executors.base import Launched, SchedulerState
from clusterkit.executors.slurm_commands import run_command
from clusterkit.model import LaunchPlan
from clusterkit.runfolder import RunFolder, Submission

SCRIPT = "job.sbatch"
"""The rendered file that is submitted, word for word."""

_GONE = ("invalid job id", "already completed", "job/step already completing or completed")


@dataclass(frozen=True, slots=True)
class SlurmJobs:
    """The executor of kind `slurm`."""

    def check_limits(self, plan: LaunchPlan) -> None:
        """Refuse what the partition cannot give; sbatch would let some of it wait forever."""
        slurm_limits.check(plan)

    def launch(self, plan: LaunchPlan, run: RunFolder, *, hidden: Collection[str]) -> Launched:
        """Hand the rendered script to sbatch."""
        from clusterkit.executors import slurm_executor  # noqa: PLC0415 - submitit loads slowly

        return slurm_executor.launch(plan, run, hidden=hidden)

    def find_lost(self, run: RunFolder) -> str | None:
        """Return the job whose script is the one in this run folder."""
        return slurm_states.find_by_script(run.path / SCRIPT)

    def states(self, runs: Mapping[RunFolder, Submission]) -> Mapping[RunFolder, SchedulerState]:
        """Return what Slurm says of these jobs, in one question for all of them."""
        wanted = {
            submission.job_id: slurm_states.Wanted(
                script=run.path / SCRIPT, name=submission.name, since=submission.submitted_at
            )
            for run, submission in runs.items()
            if submission.job_id is not None
        }
        found = slurm_states.query(wanted)
        return {
            run: found[submission.job_id]
            for run, submission in runs.items()
            if submission.job_id in found
        }

    def exit_code(self, run: RunFolder, submission: Submission) -> int | None:
        """Return the exit code of the batch script, while Slurm holds it."""
        del run
        return slurm_states.exit_code_of(submission.job_id) if submission.job_id else None

    def cancel(self, run: RunFolder, submission: Submission) -> None:
        """Ask Slurm to end the job; one that it no longer knows has ended."""
        job_id = submission.job_id or self.find_lost(run)
        if job_id is None:
            return
        answer = run_command(["scancel", job_id])
        if answer.code == 0 or any(word in answer.errors.lower() for word in _GONE):
            return
        raise RemoteError(
            f"scancel {job_id}: {answer.errors.strip() or 'failed'}",
            hint=f"try again, or: scancel {job_id}",
        )


EXECUTOR = SlurmJobs()
