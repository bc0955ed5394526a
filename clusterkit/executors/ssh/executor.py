"""Jobs on machines reached by SSH: no scheduler, no daemon, no root.

A keeper on each node, detached from the login that started it, does what a scheduler's daemon does
elsewhere; the run folder tells what it did, and ssh whether it still lives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import LaunchPlan
from clusterkit.executors.base import Launched, SchedulerState
from clusterkit.executors.run.runfolder import RunFolder, Submission


@dataclass(frozen=True, slots=True)
class SshJobs:
    """The executor of kind `ssh`."""

    def check_limits(self, plan: LaunchPlan) -> None:
        """Accept everything: whether slots are free, each node says when it is asked to start."""

    def launch(
        self,
        plan: LaunchPlan,
        run: RunFolder,
        *,
        hidden: Collection[str],
        handing_over: Callable[[], None],
    ) -> Launched:
        """Start a keeper on each node."""
        from clusterkit.executors.ssh import submit  # noqa: PLC0415 - submitit loads slowly

        del hidden  # nothing of this process's environment goes to the nodes
        return submit.launch(plan, run, handing_over=handing_over)

    def find_lost(
        self, runs: Mapping[RunFolder, Submission]
    ) -> Mapping[RunFolder, str | RemoteError | UserError]:
        """Return the job ids, which follow from the run ids, of runs that have keepers."""
        from clusterkit.executors.ssh import states as ssh_runs  # noqa: PLC0415 - paramiko loads slowly

        errors = {run: _bring(run) for run in runs}
        kept = {run: ssh_runs.job_id_of(run) for run in runs if ssh_runs.read_keepers(run)}
        return {run: error for run, error in errors.items() if error is not None} | kept

    def states(self, runs: Mapping[RunFolder, Submission]) -> Mapping[RunFolder, SchedulerState]:
        """Return the state of each job that has keepers, asking each node once."""
        from clusterkit.executors.ssh import states as ssh_runs  # noqa: PLC0415 - paramiko loads slowly

        return ssh_runs.states(runs)

    def fetch(self, run: RunFolder) -> None:
        """Bring what the nodes have written, where they do not share the run folder."""
        _fetch(run)

    def exit_code(self, run: RunFolder, submission: Submission) -> int | None:
        """Return nothing: the keepers have said what there is to say."""

    def tend(self, run: RunFolder, submission: Submission) -> None:
        """Start the next attempt: no machine does that by itself."""
        from clusterkit.executors.ssh import requeue  # noqa: PLC0415 - paramiko loads slowly

        requeue.start_again(run, submission)

    def cancel(self, run: RunFolder, submission: Submission) -> None:
        """Tell the keepers to end."""
        from clusterkit.executors.ssh import start  # noqa: PLC0415 - paramiko loads slowly
        from clusterkit.executors.ssh.layout import LAYOUT, read_layout  # noqa: PLC0415

        del submission
        # Before there is a layout nothing was started, and what still comes finds it cancelled.
        if (run.path / LAYOUT).exists():
            start.end(run, read_layout(run))

    def lingering(self, runs: Mapping[RunFolder, Submission]) -> Collection[RunFolder]:
        """Return the jobs of which a keeper lives on a node that answers."""
        from clusterkit.executors.ssh import states as ssh_runs  # noqa: PLC0415 - paramiko loads slowly

        return ssh_runs.lingering(runs)


def _fetch(run: RunFolder) -> Mapping[str, RemoteError]:
    """Bring what the nodes have written; return those that could not be asked, and why."""
    from clusterkit.executors.ssh.layout import LAYOUT, read_layout  # noqa: PLC0415

    if not (run.path / LAYOUT).exists():
        return {}
    layout = read_layout(run)
    if layout.shared:
        return {}
    from clusterkit.executors.ssh import fetch as ssh_mirror  # noqa: PLC0415 - paramiko loads slowly

    return ssh_mirror.fetch(run, layout) or {}


def _bring(run: RunFolder) -> RemoteError | UserError | None:
    """Bring what the nodes have written; return why nobody can tell whether they have anything."""
    try:
        return next(iter(_fetch(run).values()), None)
    except UserError as error:
        return error


EXECUTOR = SshJobs()
