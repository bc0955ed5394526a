"""Submit a job for somebody who stays until its end, and who may leave early."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from clusterkit.jobs import cancel, list_runs, run_roots
from clusterkit.model import LaunchPlan
from clusterkit.runfolder import RunFolder, Submission, read_submission
from clusterkit.submitting.gate import Listener
from clusterkit.submitting.one import Prepared, start

_UNLESS_TOLD = 'read -r over || exec "$@"'


@contextmanager
def ended_with_client(run: RunFolder) -> Iterator[None]:
    """Cancel the job should this process be killed within the block, where nothing of it can.

    A shell waits for a word on a pipe, in a session of its own; the kernel closes the pipe when the
    process has ended, however that was.
    """
    cancel_it = (sys.executable, "-P", "-m", "clusterkit", "cancel", str(run.path.absolute()))
    with subprocess.Popen(
        ("sh", "-c", _UNLESS_TOLD, "sh", *cancel_it),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as shell:
        try:
            yield
        finally:
            with suppress(OSError):  # somebody may have killed the shell
                shell.communicate(b"over\n")


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
