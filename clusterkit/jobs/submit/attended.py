"""Submit a job for somebody who stays until its end, and who may leave early."""

from __future__ import annotations

from collections.abc import Sequence

from clusterkit.core.model import LaunchPlan
from clusterkit.executors.run.runfolder import RunFolder, Submission, read_submission
from clusterkit.jobs import cancel, list_runs, run_roots
from clusterkit.jobs.submit.preflight import Listener
from clusterkit.jobs.submit.submit import Prepared, start


def start_attended(
    prepared: Prepared,
    *,
    exclude_unfit: bool,
    force: bool,
    listener: Listener,
    command_line: Sequence[str],
) -> tuple[LaunchPlan, RunFolder, Submission]:
    """Do as `start` for a caller who stays until the end: interrupted, it leaves no job behind.

    Raises:
        NotFitError, UserError, RemoteError: as `start`.
    """
    roots = run_roots([prepared.plan.cluster])
    before = frozenset(list_runs(roots))
    try:
        return start(
            prepared,
            exclude_unfit=exclude_unfit,
            force=force,
            listener=listener,
            command_line=command_line,
        )
    except KeyboardInterrupt:
        # It may have been handed over already.
        for begun in (run for run in list_runs(roots) if run not in before):
            known = read_submission(begun)
            if known is not None and known.command_line == tuple(command_line):
                cancel(begun)
        raise
