"""Reach the executor of a job: write the job down and submit it, ask for its state."""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import cast

from clusterkit.core import files
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import (
    NO_PLATFORM,
    ClusterKind,
    JobStatus,
    LaunchPlan,
    RenderedFile,
)
from clusterkit.core.shell import Secret
from clusterkit.executors.base import (
    Executor,
    Launched,
    RefusalError,
    SchedulerState,
    Show,
    UnconfirmedError,
    untold,
)
from clusterkit.executors.run import runfolder, submit_journal
from clusterkit.executors.run.dependencies import Dependencies
from clusterkit.executors.run.runfolder import RunFolder, Submission, only_read


def executor_of(run: RunFolder, submission: Submission, *, use: str) -> Executor:
    """Return what runs the job in `run`, which has to be ours; the only way to act on a job.

    Args:
        run: Its folder.
        submission: What stands in it.
        use: What is to be done, such as `end its job`.

    Raises:
        UserError: the run is somebody else's.
    """
    run.require_own(use)
    return executor_for(submission.kind)


def states_of_own(runs: Mapping[RunFolder, Submission]) -> dict[RunFolder, SchedulerState | str]:
    """Return what schedulers say of these jobs, or why they could not be asked.

    Each is asked once. Of a job of somebody else nobody is asked: what stands in its folder would
    go to a scheduler, or a node, as if we had said it.
    """
    found: dict[RunFolder, SchedulerState | str] = {}
    found |= {run: only_read(run, why) for run in runs if (why := run.foreign) is not None}
    ours = {run: submission for run, submission in runs.items() if run not in found}
    for executor, of_kind in _by_executor(ours):
        try:
            found |= executor.states(of_kind)
        except (RemoteError, UserError) as error:
            found |= dict.fromkeys(of_kind, _why(error))
    return found


def with_job_ids(
    runs: Mapping[RunFolder, Submission],
) -> tuple[dict[RunFolder, Submission], dict[RunFolder, str]]:
    """Return the submissions with the ids that nobody wrote down, and who could not be asked why.

    A client may have died, or given up, between handing a job over and learning its id. One that
    was cancelled meanwhile is ended.
    """
    found, silent = dict(runs), dict[RunFolder, str]()
    lost = {run: s for run, s in runs.items() if s.job_id is None and run.foreign is None}
    for executor, of_kind in _by_executor(lost):
        answers: Mapping[RunFolder, str | RemoteError | UserError]
        try:
            answers = executor.find_lost(of_kind)
        except (RemoteError, UserError) as error:
            answers = dict.fromkeys(of_kind, error)
        for run, answer in answers.items():
            if not isinstance(answer, str):
                silent[run] = _why(answer)
                continue
            found[run] = dataclasses.replace(of_kind[run], job_id=answer)
            with suppress(UserError):
                runfolder.write_submission(run, found[run])
            _end_if_cancelled(executor, run, found[run])
    return found, silent


def _by_executor(
    runs: Mapping[RunFolder, Submission],
) -> Iterator[tuple[Executor, dict[RunFolder, Submission]]]:
    """Yield each executor that these jobs have, with its jobs."""
    for kind in {submission.kind for submission in runs.values()}:
        yield executor_for(kind), {run: s for run, s in runs.items() if s.kind is kind}


def _why(error: RemoteError | UserError) -> str:
    if isinstance(error, UserError):
        return str(error)
    return f"{error.node}: {error.message}" if error.node else error.message


def fetch(run: RunFolder, submission: Submission) -> None:
    """Bring what nodes have written into a run folder of ours; nothing into any other.

    Raises:
        UserError: it cannot be written here.
        RemoteError: nodes cannot be asked.
    """
    if run.foreign is None:
        executor_for(submission.kind).fetch(run)


def executor_for(kind: ClusterKind) -> Executor:
    """Return what runs new jobs on clusters of this kind; for those there are, `executor_of`."""
    return cast(
        "Executor", importlib.import_module(f"clusterkit.executors.{kind}.executor").EXECUTOR
    )


def submit_plan(
    plan: LaunchPlan,
    rendered: Iterable[RenderedFile],
    run: RunFolder,
    *,
    secrets: Mapping[str, Secret],
    command_line: Sequence[str] = (),
    dependencies: Dependencies | None = None,
    show: Show = untold,
) -> tuple[Submission, Launched]:
    """Write the run folder, then start the job; return what stands in `submission.json`.

    `dependencies` say what the job has to do with others; `show` is told how far its start is.

    Whatever is raised before the job was handed over takes the run folder with it.
    Everything is on disk before anything is launched, so that a client which dies at any moment
    loses nothing: the worker, or a later `clusterkit status`, finds the job by its folder.

    Raises:
        UserError: the folder cannot be written, or a secret has no value.
        RefusalError: the job was refused.
        UnconfirmedError: nobody can tell whether it was accepted; `clusterkit status` will.
    """
    noted = False
    try:
        executor = executor_for(plan.cluster.kind)
        _require_secrets(plan, secrets)
        dependencies = dependencies or Dependencies()
        job_id = None
        if executor.has_to_wait(dependencies):
            job_id = executor.queue(plan, run, dependencies)
            files.create_text(run.queued, "")
        submission = _prepare(plan, rendered, run, secrets, command_line, dependencies)
        noted = True
        queued = Launched(job_id=job_id) if job_id is not None else None
        launched = queued or executor.launch(plan, run, show)
        accepted = dataclasses.replace(submission, job_id=launched.job_id)
        warnings = (*_write_job_id(run, accepted), *_end_if_cancelled(executor, run, accepted))
    except RefusalError as error:
        _keep_refusal(run, submission, error)
        raise
    except BaseException as error:
        if not (noted and submit_journal.is_handed_over(run)):
            files.remove_tree(run.path)  # nothing was started; half a run would only confuse
        elif not isinstance(error, UnconfirmedError):  # which has noted what was said
            why = str(error) or "interrupted"
            submit_journal.give_up(run, why)
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(str(UnconfirmedError(why, run))) from error
        raise
    return accepted, dataclasses.replace(launched, messages=(*launched.messages, *warnings))


def _keep_refusal(run: RunFolder, submission: Submission, error: RefusalError) -> None:
    """Keep the run with the reason why it never ran; or remove it, where there is no room."""
    try:
        status = JobStatus(state=error.ended_as, reason=error.message)
        runfolder.write_state(run, submission, status)
        files.remove(run.secrets)
    except UserError:
        files.remove_tree(run.path)


def _write_job_id(run: RunFolder, submission: Submission) -> tuple[str, ...]:
    """Write the job id down; return what to say where that fails, because the job runs."""
    try:
        runfolder.write_submission(run, submission)
    except UserError as error:
        how = "by its script " if submission.kind.scheduled else ""
        message = (
            f"job {submission.job_id} was accepted, but {error.problems[0].message}; "
            f"clusterkit status finds it {how}once there is room"
        )
        return (message,)
    return ()


def _end_if_cancelled(
    executor: Executor, run: RunFolder, submission: Submission
) -> tuple[str, ...]:
    """End a job that was cancelled while it was on its way, by someone who had no id of it."""
    if run.cancelled.exists():
        try:
            executor.cancel(run, submission)
        except (RemoteError, UserError) as error:
            return (f"job {submission.job_id} was cancelled meanwhile, but: {error}",)
    return ()


def _require_secrets(plan: LaunchPlan, secrets: Mapping[str, Secret]) -> None:
    missing = [name for name in plan.secrets if name not in secrets]
    if missing:
        raise UserError(
            f"no value for the secret variable {', '.join(missing)}",
            hint="export it in the shell that submits",
        )


def _prepare(
    plan: LaunchPlan,
    rendered: Iterable[RenderedFile],
    run: RunFolder,
    secrets: Mapping[str, Secret],
    command_line: Sequence[str],
    dependencies: Dependencies,
) -> Submission:
    """Write everything about the job into its folder."""
    submission = Submission(
        run_id=run.run_id,
        name=plan.name,
        cluster=plan.cluster.name,
        kind=plan.cluster.kind,
        framework=plan.framework,
        nodes=plan.nodes,
        max_nodes=plan.max_nodes,
        tasks=1 if plan.command.once else plan.nodes,
        once=plan.command.once,
        slots=sum(plan.slots),
        submitted_at=time.time(),
        command_line=tuple(command_line),
        time_limit_s=plan.time_limit_s,
        notice_s=plan.notice_s,
        requeue=plan.requeue,
        restarts=plan.restarts,
        requeue_on=plan.requeue_on,
        on_hang=plan.on_hang,
        hang_after_s=plan.hang_after_s,
        notices=plan.cluster.platform != NO_PLATFORM,
        resumes=plan.cluster.plain_srun_args != plan.cluster.srun_args,
        spares=plan.spares,
        array=dependencies.array,
        index=dependencies.index,
        values=dependencies.values,
        after=dependencies.after,
    )
    submit_journal.begin(run)
    document = {"schema": runfolder.SCHEMA, **files.plain(plan)}
    files.write_json(run.plan, document, mode=files.PRIVATE)
    for file in rendered:
        path = run.path / file.name
        files.create_folder(path.parent)
        mode = files.PRIVATE_PROGRAM if file.executable else files.PRIVATE
        files.write_text(path, file.text, mode=mode)
    runfolder.write_secrets(run, secrets)
    runfolder.write_submission(run, submission)
    return submission
