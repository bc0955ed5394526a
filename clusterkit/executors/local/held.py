"""Hold a job of this machine, and start it later as if it were started where it was submitted."""

from __future__ import annotations

import json
import socket
from collections.abc import Collection

from clusterkit.core import files, reading
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import LaunchPlan
from clusterkit.executors.base import RefusalError, scrubbed_environment
from clusterkit.executors.local.runs import job_id_of
from clusterkit.executors.run.dependencies import Ties
from clusterkit.executors.run.runfolder import RunFolder, Submission


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
    from clusterkit.executors.local.submitit import LocalExecutor  # noqa: PLC0415 - loads slowly
    from clusterkit.executors.submitit_driver import launch_by  # noqa: PLC0415

    host, variables = _kept(run)
    if host != socket.gethostname():
        message = f"{job_id_of(run)} is to run on {host}, and this is another machine"
        raise RemoteError(message, hint=f"on {host}: clusterkit wait {run.path}")
    executor = LocalExecutor(run, submission.tasks, variables, lambda: files.remove(run.held))
    try:
        launch_by(executor, run)
    except (RefusalError, UserError):
        files.create_text(run.held, "")  # its controller has gone
        raise
    files.remove(run.shell)


def _kept(run: RunFolder) -> tuple[str, dict[str, str]]:
    """Return the host and the environment of the shell that submitted the job.

    Raises:
        UserError: they cannot be read, or somebody else may have written them.
    """
    try:
        # Not as other documents: half of a surrogate pair stands for a byte here.
        kept = json.loads(reading.read_bytes(run.shell, own=True))
        host, variables = str(kept["host"]), dict(kept["variables"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        host, variables = "", {}
    if not host or not all(isinstance(text, str) for item in variables.items() for text in item):
        raise UserError(f"no readable {run.shell}", hint="submit the job again")
    return host, variables
