"""Hold a job of this machine, and start it later as if it were started where it was submitted."""

from __future__ import annotations

import json
import socket
from collections.abc import Collection

from clusterkit import files
from clusterkit.errors import RemoteError, UserError
from clusterkit.executors.base import RefusalError, scrubbed_environment
from clusterkit.executors.local_runs import job_id_of
from clusterkit.model import LaunchPlan
from clusterkit.runfolder import RunFolder, Submission
from clusterkit.ties import Ties


def hold(plan: LaunchPlan, run: RunFolder, ties: Ties, *, hidden: Collection[str]) -> str:
    """Keep the environment, which is that of the job; return the job id."""
    del plan, ties
    kept = {"host": socket.gethostname(), "variables": scrubbed_environment(hidden)}
    # As ASCII: a variable may hold bytes that are no UTF-8.
    files.write_text(run.shell, json.dumps(kept), mode=files.PRIVATE)
    return job_id_of(run)


def release(run: RunFolder, submission: Submission) -> None:
    """Start the controller of the job.

    Raises:
        RemoteError: it belongs to another machine, or its controller did not start.
        UserError: its environment cannot be read.
    """
    from clusterkit.executors.local_executor import LocalExecutor  # noqa: PLC0415 - loads slowly
    from clusterkit.executors.submitting import launch_by  # noqa: PLC0415

    kept = files.read_json(run.shell)
    if kept is None:
        raise UserError(f"no readable {run.shell}", hint="submit the job again")
    if kept["host"] != socket.gethostname():
        message = f"{job_id_of(run)} is to run on {kept['host']}, and this is another machine"
        raise RemoteError(message, hint=f"on {kept['host']}: clusterkit wait {run.path}")
    executor = LocalExecutor(
        run, submission.tasks, kept["variables"], lambda: files.remove(run.held)
    )
    try:
        launch_by(executor, run)
    except (RefusalError, UserError):
        files.create_text(run.held, "")  # its controller has gone
        raise
    files.remove(run.shell)
