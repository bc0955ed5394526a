"""The submitit side of Slurm: our text, our environment, submitit's pickles and Job.

A subclass of submitit's own executor. The overridden methods are private in submitit: the
dependency is pinned below 1.6, and tests/test_executors_slurm.py holds the contract.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from submitit.core import core
from submitit.core.utils import DelayedSubmission
from submitit.slurm import slurm

from clusterkit.core.commands import Answer, run_command
from clusterkit.core.errors import RemoteError
from clusterkit.core.model import LaunchPlan
from clusterkit.executors.base import (
    PYTHON_VARIABLE,
    RUN_FOLDER_VARIABLE,
    Launched,
    UnconfirmedError,
    scrubbed_environment,
    tasks_of,
)
from clusterkit.executors.run import submit_journal
from clusterkit.executors.run.pickles import kept_private
from clusterkit.executors.run.runfolder import RunFolder, read_submission
from clusterkit.executors.run.submit_journal import SBATCH_TIMEOUT_S
from clusterkit.executors.slurm import lost_jobs, states
from clusterkit.executors.slurm.refusals import accepted_id, own_words, refusal
from clusterkit.executors.slurm.states import SCRIPT, Wanted
from clusterkit.executors.submitit_driver import launch_by


class JobWatcher(slurm.SlurmInfoWatcher):
    """Ask squeue instead of sacct, which many sites have disabled."""

    def update(self) -> None:
        """Refresh what is known of the registered jobs."""
        for job_id in self._registered - self._finished:
            wanted = self._wanted.get(job_id)
            found = states.query({job_id: wanted}) if wanted is not None else {}
            self._info_dict.update({key: {"State": state.word} for key, state in found.items()})
        super().update()

    def _make_command(self) -> list[str] | None:
        return None

    def __init__(self, delay_s: int = 2) -> None:
        super().__init__(delay_s=delay_s)
        self._wanted: dict[str, Wanted] = {}

    def expect(self, job_id: str, wanted: Wanted) -> None:
        """Remember what the job must be for its id to mean ours."""
        self._wanted[job_id] = wanted


class SlurmExecutor(slurm.SlurmExecutor):
    """Submit the rendered script of one run."""

    def __init__(
        self,
        plan: LaunchPlan,
        run: RunFolder,
        environment: Mapping[str, str],
        handing_over: Callable[[], None],
    ) -> None:
        """Submit the script of `run`, with this environment for sbatch."""
        super().__init__(run.submitit)
        self.plan = plan
        self.run = run
        self.environment = environment
        self.handing_over = handing_over
        self.launched: Launched | None = None
        """What came of it, once sbatch has accepted the job."""

    @classmethod
    def affinity(cls) -> int:
        """Accept any machine; whether sbatch is there shows when it is called."""
        return 2

    def _internal_process_submissions(
        self, delayed_submissions: list[DelayedSubmission]
    ) -> list[core.Job[Any]]:
        jobs: list[core.Job[Any]] = super()._internal_process_submissions(
            kept_private(delayed_submissions)
        )
        return jobs

    def _num_tasks(self) -> int:
        return tasks_of(self.plan)

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        del command, uid
        return (self.run.path / SCRIPT).read_text(encoding="utf-8")

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        """Return sbatch with what must not stand in the text: where the run folder is."""
        # Slurm expands % in the names of output files.
        log = str(self.run.submitit / "%j_batch.out").replace("%", "%%").replace("%%j_", "%j_")
        flags = {"output": log, "error": log, "open-mode": "append", "chdir": self.plan.workdir}
        skipped = self.plan.cluster.skip_directives
        given = [f"--{name}={value}" for name, value in flags.items() if name not in skipped]
        if lost_jobs.may_comment(self.plan):
            given.append(f"--comment={lost_jobs.comment_of(self.run)}")
        command = ["sbatch", "--parsable", *given]
        exported = self.plan.directives.get("export")
        if exported is not None and exported.upper() != "ALL":
            # Names alone: Slurm would cut a value at a comma, and show it to everybody.
            kept = [] if exported.upper() in {"NONE", "NIL"} else [exported]
            names = ",".join([*kept, RUN_FOLDER_VARIABLE, PYTHON_VARIABLE])
            command.append(f"--export={names}")
        return [*command, str(submission_file_path)]

    def _submit_command(self, command: str) -> core.Job[Any]:
        del command
        self.handing_over()
        answer = run_command(
            self._make_submission_command(self.run.path / SCRIPT),
            environment=self.environment,
            timeout_s=SBATCH_TIMEOUT_S,
        )
        job_id = accepted_id(answer.output) if answer.code == 0 else None
        if job_id is None:
            job_id = self._look_for_it(answer)
        messages = tuple(line for line in answer.errors.splitlines() if line.strip())
        self.launched = Launched(job_id=job_id, messages=messages)
        tasks = list(range(self._num_tasks()))
        return SlurmJob(folder=self.folder, job_id=job_id, tasks=tasks)

    def _look_for_it(self, answer: Answer) -> str:
        """Return the job of an sbatch that did not say its id, but may have submitted it.

        Raises:
            RefusalError: it certainly has not.
            UnconfirmedError: nobody can tell.
        """
        refused = refusal(answer, self.plan, self.run.path / SCRIPT)
        if refused is not None:
            raise refused
        said = own_words(answer)
        submit_journal.give_up(self.run, said)
        submission = read_submission(self.run)
        wanted = {self.run: submission} if submission is not None else {}
        job_id = lost_jobs.await_one(wanted)
        if job_id is None:
            raise UnconfirmedError(f"sbatch: {said}", self.run)
        return job_id

    @staticmethod
    def _get_job_id_from_submission_command(string: str | bytes) -> str:
        """Read the job id from what sbatch printed, as submitit asks."""
        text = string if isinstance(string, str) else string.decode(errors="replace")
        job_id = accepted_id(text)
        if job_id is None:
            raise RemoteError(f"no job id in what sbatch printed: {text.strip()!r}")
        return job_id


class SlurmJob(slurm.SlurmJob[Any]):
    """A Slurm job as submitit knows jobs, whose state does not need accounting."""

    watcher = JobWatcher()

    def _register_in_watcher(self) -> None:
        run = RunFolder(self.paths.folder.parent)
        submission = read_submission(run)
        if submission is not None:
            self.watcher.expect(self.job_id, Wanted.of(run, submission))
        super()._register_in_watcher()


def launch(
    plan: LaunchPlan,
    run: RunFolder,
    *,
    hidden: Collection[str],
    handing_over: Callable[[], None],
) -> Launched:
    """Submit the job in `run`.

    Raises:
        UserError: the task cannot be written.
        RefusalError: sbatch is missing, or refused the job.
        UnconfirmedError: sbatch did not answer, or not with a job id, and Slurm lists no such job.
    """
    environment = {
        **scrubbed_environment(hidden),
        RUN_FOLDER_VARIABLE: str(run.path),
        PYTHON_VARIABLE: sys.executable,
    }
    return launch_by(SlurmExecutor(plan, run, environment, handing_over), run)
