"""Write down everything about a job, then hand it over."""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from clusterkit import files, runfolder
from clusterkit.errors import RemoteError, UserError
from clusterkit.executors.base import Executor, Launched, tasks_of
from clusterkit.model import ClusterKind, JobState, JobStatus, LaunchPlan, RenderedFile
from clusterkit.runfolder import RunFolder, Submission
from clusterkit.shell import Secret

_EXECUTORS = {
    ClusterKind.LOCAL: "clusterkit.executors.local",
    ClusterKind.SLURM: "clusterkit.executors.slurm",
}


def executor_for(kind: ClusterKind) -> Executor:
    """Return what runs jobs on clusters of this kind.

    Raises:
        UserError: this release launches no jobs there.
    """
    if kind not in _EXECUTORS:
        raise UserError(
            f"clusters of kind `{kind.value}` are launched by a later release",
            hint="`clusterkit render` writes the files; run node.sh on every node by hand",
        )
    return cast("Executor", importlib.import_module(_EXECUTORS[kind]).EXECUTOR)


def submit_plan(
    plan: LaunchPlan,
    rendered: Iterable[RenderedFile],
    run: RunFolder,
    *,
    secrets: Mapping[str, Secret],
    command_line: Sequence[str] = (),
    check_limits: bool = True,
) -> tuple[Submission, Launched]:
    """Write the run folder, then start the job; return what stands in `submission.json`.

    Everything is on disk before anything is launched, so that a client which dies at any moment
    loses nothing: the worker, or a later `clusterkit status`, finds the job by its folder.

    Raises:
        UserError: the folder cannot be written, a secret has no value, or the cluster is too small.
        RemoteError: the job was refused.
    """
    try:
        executor = executor_for(plan.cluster.kind)
        _require_secrets(plan, secrets)
        if check_limits:
            executor.check_limits(plan)
        submission = _prepare(plan, rendered, run, secrets, command_line)
    except BaseException:
        files.remove_tree(run.path)  # nothing was started; half a run would only confuse
        raise
    try:
        launched = executor.launch(plan, run, hidden=frozenset(secrets))
    except RemoteError as error:
        refused = JobStatus(state=JobState.FAILED, reason=error.message)
        runfolder.write_state(run, submission, refused)
        files.remove(run.secrets)
        raise
    submission = dataclasses.replace(submission, job_id=launched.job_id)
    runfolder.write_submission(run, submission)
    return submission, launched


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
) -> Submission:
    """Write everything about the job into its folder."""
    submission = Submission(
        run_id=run.run_id,
        name=plan.name,
        cluster=plan.cluster.name,
        kind=plan.cluster.kind,
        framework=plan.framework,
        nodes=plan.nodes,
        tasks=tasks_of(plan),
        once=plan.command.once,
        submitted_at=time.time(),
        command_line=tuple(command_line),
        time_limit_s=plan.time_limit_s,
        requeue=plan.requeue,
    )
    files.write_json(run.plan, {"schema": runfolder.SCHEMA, **files.plain(plan)})
    for file in rendered:
        path = run.path / file.name
        files.create_folder(path.parent)
        mode = files.EXECUTABLE if file.executable else files.PUBLIC
        files.write_text(path, file.text, mode=mode)
    runfolder.write_secrets(run, secrets)
    runfolder.write_submission(run, submission)
    return submission
