"""Jobs on Slurm: submitted through submitit, watched by squeue, with or without accounting."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib import import_module

from clusterkit.core import files, timing
from clusterkit.core.commands import Answer, run_command
from clusterkit.core.errors import RemoteError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import JobState, LaunchPlan
from clusterkit.core.records import object_of, text_of
from clusterkit.executors.base import (
    PYTHON_VARIABLE,
    RUN_FOLDER_VARIABLE,
    Executor,
    Forecast,
    Launched,
    SchedulerState,
    Show,
    UnconfirmedError,
    scrubbed_environment,
    untold,
)
from clusterkit.executors.run import node_results, submit_journal
from clusterkit.executors.run.dependencies import Dependencies, waiting_for
from clusterkit.executors.run.runfolder import RunFolder, Submission, read_submission
from clusterkit.executors.slurm import limits, lost_jobs, refusals
from clusterkit.executors.slurm import states as slurm_states
from clusterkit.executors.slurm.forecast import forecast
from clusterkit.executors.slurm.states import Query

_IN_FLIGHT_S = timing.scaled(8.0, 4.0)
"""How long `cancel` waits for the id. Afterwards the client that submits, or the job itself when it
starts, finds it cancelled."""
_GONE = ("invalid job id", "already completed", "job/step already completing or completed")


class SlurmExecutor(Executor):
    """The executor of kind `slurm`. Its nodes write into the run folder themselves."""

    absence = "Slurm no longer lists it"

    def check_limits(self, plan: LaunchPlan) -> bool:
        """Refuse what the partition cannot give; sbatch would let some of it wait forever."""
        with ThreadPoolExecutor(1) as pool:
            checking = pool.submit(limits.check, plan)
            import_module("clusterkit.executors.submitit_job")  # needed next, while Slurm answers
            return checking.result()

    def forecast(self, plan: LaunchPlan, script: str) -> Forecast:
        """Ask `sbatch --test-only`, scontrol and sacctmgr; nothing is submitted."""
        return forecast(plan, script)

    def launch(self, plan: LaunchPlan, run: RunFolder, show: Show = untold) -> Launched:
        """Hand the rendered script to sbatch.

        Raises:
            UserError: the task cannot be written.
            RefusalError: sbatch is missing, or refused the job.
            UnconfirmedError: sbatch did not answer, or not with a job id, and Slurm lists no such
                job.
        """
        from clusterkit.executors.submitit_job import write_task  # noqa: PLC0415 - loads slowly

        del show
        environment = {
            **scrubbed_environment(plan.secrets),
            RUN_FOLDER_VARIABLE: str(run.path),
            PYTHON_VARIABLE: sys.executable,
        }

        task = write_task(run)
        submit_journal.hand_over(run)
        answer = run_command(
            sbatch_command(plan, run),
            environment=environment,
            timeout_s=submit_journal.SBATCH_TIMEOUT_S,
        )
        job_id = refusals.accepted_id(answer.output) if answer.code == 0 else None
        messages = tuple(line for line in answer.errors.splitlines() if line.strip())
        job_id = job_id or _look_for_it(plan, run, answer)
        with suppress(OSError):  # nodes take it under its first name as well
            task.rename(task.with_name(f"{job_id}_submitted.pkl"))
        return Launched(job_id=job_id, messages=messages)

    def has_to_wait(self, dependencies: Dependencies) -> bool:
        """Tell that no job needs a client to wait: Slurm keeps its dependencies."""
        del dependencies
        return False

    def find_lost(self, runs: Mapping[RunFolder, Submission]) -> Mapping[RunFolder, str]:
        """Return the jobs that were submitted from these run folders."""
        return lost_jobs.find(runs)

    def states(self, runs: Mapping[RunFolder, Submission]) -> Mapping[RunFolder, SchedulerState]:
        """Return what Slurm says of these jobs, in one question for all of them."""
        queries = {
            submission.job_id: Query.of(run, submission)
            for run, submission in runs.items()
            if submission.job_id is not None
        }
        found = slurm_states.query(queries)
        return {
            run: _named(found[submission.job_id], submission)
            for run, submission in runs.items()
            if submission.job_id in found
        }

    def exit_code(self, run: RunFolder, submission: Submission) -> int | None:
        """Return the exit code of the batch script, while Slurm holds it."""
        del run
        return slurm_states.exit_code_of(submission.job_id) if submission.job_id else None

    def restart(self, run: RunFolder, submission: Submission) -> None:
        """Tell Slurm, once for each list, which nodes the waiting job is not to get again.

        Slurm lets them be changed only while a job waits (scontrol(1), ExcNodeList), so that no
        node of the job can do it; a client that looks on can. Not where the job asks for spares
        enough: its script leaves those nodes out by itself, and without them there might never be
        so many nodes.

        Raises:
            RemoteError: Slurm did not take it; the job may have begun in this moment.
            UserError: the run folder cannot be written.
        """
        failed = node_results.left_out(run)
        nodes = hostlist.fold_set(failed)
        done = files.read_json(run.told_slurm) == {"left_out": nodes}
        if submission.job_id is None or len(failed) <= submission.spares or done:
            return
        plan = files.read_json(run.plan, own=True) or {}
        excluded_before = text_of(object_of(plan, "directives"), "exclude") or ""
        excluded = hostlist.fold_set(hostlist.expand(excluded_before, source=str(run.plan)))
        listed = ",".join(part for part in (excluded, nodes) if part)  # the new list replaces it
        answer = run_command(
            ["scontrol", "update", f"JobId={submission.job_id}", f"ExcNodeList={listed}"]
        )
        if answer.code:
            raise RemoteError(f"Slurm does not leave out {nodes}: {answer.errors.strip()}")
        files.write_json(run.told_slurm, {"left_out": nodes})

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
        return {run for run, known in self.states(runs).items() if not known.state.final}

    def _await_job_id(self, run: RunFolder, submission: Submission) -> str | None:
        """Wait for the job of an sbatch that may still be on its way."""
        noted = submit_journal.read(run)
        under_way = noted is not None and submit_journal.is_under_way(run, noted)
        deadline = time.monotonic() + (_IN_FLIGHT_S if under_way else 0.0)
        while (job_id := self.find_lost({run: submission}).get(run)) is None:
            known = read_submission(run)
            if known is not None and known.job_id is not None:
                return known.job_id
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        return job_id


def sbatch_command(plan: LaunchPlan, run: RunFolder) -> list[str]:
    """Return sbatch for the script of `run`, with what must not stand in it: its own folder."""
    # Slurm expands % in the names of output files.
    log = str(run.submitit / "%j_batch.out").replace("%", "%%").replace("%%j_", "%j_")
    flags = {"output": log, "error": log, "open-mode": "append", "chdir": plan.workdir}
    skipped = plan.cluster.skip_directives
    command = ["sbatch", "--parsable"]
    command += [f"--{name}={value}" for name, value in flags.items() if name not in skipped]
    if lost_jobs.may_comment(plan):
        command.append(f"--comment={lost_jobs.comment_of(run)}")
    exported = plan.directives.get("export")
    if exported is not None and exported.upper() != "ALL":
        # Names alone: Slurm would cut a value at a comma, and show it to everybody.
        kept = [] if exported.upper() in {"NONE", "NIL"} else [exported]
        names = ",".join([*kept, RUN_FOLDER_VARIABLE, PYTHON_VARIABLE, *timing.passed_on()])
        command.append(f"--export={names}")
    return [*command, str(run.sbatch)]


def _look_for_it(plan: LaunchPlan, run: RunFolder, answer: Answer) -> str:
    """Return the job of an sbatch that did not say its id, but may have submitted it.

    Raises:
        RefusalError: it certainly has not.
        UnconfirmedError: nobody can tell.
    """
    refused = refusals.refusal(answer, plan, run.sbatch)
    if refused is not None:
        raise refused
    output = refusals.own_message(answer)
    submit_journal.give_up(run, output)
    submission = read_submission(run)
    job_id = lost_jobs.await_one({run: submission} if submission is not None else {})
    if job_id is None:
        raise UnconfirmedError(f"sbatch: {output}", run)
    return job_id


def _named(known: SchedulerState, submission: Submission) -> SchedulerState:
    """Name the jobs that a job waits for, where Slurm says `Dependency`."""
    if known.reason != "Dependency" or not submission.after:
        return known
    waits = known.state is JobState.PENDING
    return replace(known, reason=waiting_for(submission.after) if waits else None)


EXECUTOR = SlurmExecutor()
