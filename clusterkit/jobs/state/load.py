"""The state of jobs: collect the evidence, have it judged, and keep what is final."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.model import JobState, JobStatus, NodeResult
from clusterkit.core.records import record_of, text_of
from clusterkit.executors import SchedulerState, executor_of
from clusterkit.executors.run import hangs, node_results, restarts, runfolder, submit_journal
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.submission import states_of_own, with_job_ids
from clusterkit.jobs.state.conclude import Evidence, evaluate, explained


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A submitted job and what is known of it now."""

    run: RunFolder
    submission: Submission
    status: JobStatus
    results: tuple[NodeResult, ...] = ()


def load_jobs(runs: Iterable[RunFolder]) -> list[Job]:
    """Return the state of every run; each scheduler is asked once, and only where it matters.

    A final state is kept in `state.json`: from then on it costs one small file.
    """
    jobs: dict[RunFolder, Job | None] = {run: _kept(run) for run in runs}
    waiting = {}
    for run in [run for run, job in jobs.items() if job is None]:
        submission = runfolder.read_submission(run)
        if submission is not None:
            waiting[run] = submission
    for run, evidence in gather(waiting).items():
        jobs[run] = conclude(run, evidence)
    known = [job for job in jobs.values() if job is not None]
    for job in known:
        if job.submission.array and job.status.state.final:
            _remove_code_for_others(job.run)
    return known


def load_job(run: RunFolder) -> Job:
    """Return the state of one run.

    Raises:
        UserError: its folder holds no submission.
    """
    jobs = load_jobs([run])
    if not jobs:
        raise _unreadable(run)
    if jobs[0].results:
        return jobs[0]
    return dataclasses.replace(jobs[0], results=node_results.read_results(run).nodes)


def _unreadable(run: RunFolder) -> UserError:
    if not run.path.exists():
        return UserError(
            f"{run.path} has been removed, and with it all that was known of the job",
            hint="nodes that still work for it end within seconds",
        )
    if run.submission.exists():
        return UserError(
            f"{run.submission} is damaged: nobody can tell which job this was",
            hint=f"what the nodes wrote is there: {run.logs}, {run.nodes}",
        )
    return UserError(
        f"{run.path} holds no submission.json",
        hint="the submission was interrupted before anything was started",
    )


def states_of(runs: Iterable[RunFolder]) -> dict[str, JobState]:
    """Return the state of every run by the path of its folder; unknown where it is not ours."""
    return {
        str(job.run.path): job.status.state if job.run.foreign is None else JobState.UNKNOWN
        for job in load_jobs(runs)
    }


def gather(runs: Mapping[RunFolder, Submission]) -> dict[RunFolder, Evidence]:
    """Collect the evidence on these runs, asking each scheduler once."""
    runs, silent = with_job_ids(runs)
    found = {**states_of_own(runs), **silent}
    return {run: _evidence(run, submission, found.get(run)) for run, submission in runs.items()}


def conclude(run: RunFolder, evidence: Evidence) -> Job:
    """Evaluate the evidence; keep the state where it is final and the run is ours."""
    if run.foreign is not None:
        return _job(run, evidence, evaluate(evidence))
    status = _with_disk(run, evidence, explained(evaluate(evidence), evidence, states_of))
    scheduled = evidence.scheduled and evidence.scheduler is not None
    if status.state.final and status.exit_code is None and scheduled:
        executor = executor_of(run, evidence.submission, use="ask for its exit code")
        code = executor.exit_code(run, evidence.submission)
        # Slurm holds 0 for a job that never ran; a job that did not succeed never has 0.
        status = dataclasses.replace(status, exit_code=code or None)
    if status.state.final and evidence.handing is not None and not evidence.results.nodes:
        # Should the job come all the same, it ends at its start, and never runs beside another.
        with suppress(UserError):
            files.create_text(run.cancelled, "")
    if status.state.final:
        # A full disk must not keep anyone from looking.
        with suppress(UserError):
            runfolder.write_state(run, evidence.submission, status)
            for private in (run.secrets, run.shell):
                files.remove(private)
    return _job(run, evidence, status)


def _remove_code_for_others(run: RunFolder) -> None:
    """Remove what a client left that was killed before it had handed over its last job.

    Looked for again and again: that client may have lived when the state was kept.
    """
    if run.for_others.exists() and run.foreign is None and submit_journal.has_client_ended(run):
        files.remove_tree(run.for_others)


def _with_disk(run: RunFolder, evidence: Evidence, status: JobStatus) -> JobStatus:
    """Say that the run folder takes no more data, where no node has left a word."""
    if status.state not in {JobState.FAILED, JobState.UNKNOWN} or evidence.results.nodes:
        return status
    why = files.refuses_data(run.path)
    if why is None:
        return status
    reason = "; ".join(filter(None, (status.reason, f"cannot write in {run.path}: {why}")))
    return dataclasses.replace(status, reason=reason)


def _job(run: RunFolder, evidence: Evidence, status: JobStatus) -> Job:
    results = evidence.results.nodes
    return Job(run=run, submission=evidence.submission, status=status, results=results)


def _kept(run: RunFolder) -> Job | None:
    document = files.read_json(run.state)
    submission = runfolder.submission_of(document)
    if document is None or submission is None:
        return None
    status = record_of(JobStatus, document.get("status"))
    if status is None or not status.state.final:
        return None
    return Job(run=run, submission=submission, status=status)


def _evidence(
    run: RunFolder,
    submission: Submission,
    answer: SchedulerState | str | None,
) -> Evidence:
    scheduler = answer if isinstance(answer, SchedulerState) else None
    last_failed = node_results.latest_attempt(run)
    attempt = max(last_failed, scheduler.attempt if scheduler is not None else 0)
    noted = submit_journal.read(run) if submission.job_id is None and run.foreign is None else None
    under_way = noted is not None and submit_journal.is_under_way(run, noted)
    if noted is not None and answer is None and not under_way:
        noted = submit_journal.miss(run, noted)
    results = node_results.read_results(run, attempt)
    return Evidence(
        submission=submission,
        results=results,
        first_failure=node_results.first_failure(run, attempt),
        last_failed=last_failed,
        left_out=len(node_results.left_out(run)) if submission.most_attempts > 1 else 0,
        in_vain=node_results.why_in_vain(run, attempt),
        why_again=text_of(files.read_json(run.requeued(attempt)) or {}, "why")
        or (restarts.why(run, attempt) if submission.restarts else None),
        restarted=restarts.count(run, attempt) if submission.restarts else 0,
        pause_s=restarts.pause_s(run, attempt) if submission.restarts else 0.0,
        rounds=node_results.read_rounds(run, attempt) if submission.max_nodes else (),
        hang=hangs.open_hang(run, attempt),
        cancelled=run.cancelled.exists(),
        scheduler=scheduler,
        silence=answer if isinstance(answer, str) else None,
        handing=noted,
        under_way=under_way,
        now=time.time(),
    )
