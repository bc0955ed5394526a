"""Hold a job over ssh, and start it later, from any machine that reaches its nodes."""

from __future__ import annotations

from collections.abc import Collection

from clusterkit import runfolder
from clusterkit.executors import ssh_start
from clusterkit.executors.base import RefusalError
from clusterkit.executors.ssh_layout import read_layout, write_layout
from clusterkit.model import JobState, JobStatus, LaunchPlan
from clusterkit.runfolder import RunFolder, Submission


def hold(plan: LaunchPlan, run: RunFolder, *, hidden: Collection[str]) -> str:
    """Write the layout, and return the job id."""
    del hidden  # nothing of this process's environment goes to the nodes
    layout = ssh_start.layout_of(plan, run)
    write_layout(run, layout)
    return layout.job_id


def release(run: RunFolder, submission: Submission) -> None:
    """Start a keeper on each node, if all of them would take the job.

    Raises:
        RemoteError: a node would not, and nothing was started; or one refused in the last moment,
            which ends the job.
        UserError: the run folder cannot be read or written.
    """
    from clusterkit.executors.ssh_executor import TaskExecutor  # noqa: PLC0415 - loads slowly
    from clusterkit.executors.submitting import launch_by  # noqa: PLC0415

    layout = read_layout(run)
    ssh_start.check(run, layout)
    try:
        launch_by(TaskExecutor(run, layout, lambda: None), run)
    except RefusalError as error:
        status = JobStatus(state=JobState.FAILED, reason=error.message)
        runfolder.write_state(run, submission, status)
        raise
