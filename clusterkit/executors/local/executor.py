"""Jobs on this machine: every node is a process group with a loopback address of its own.

No scheduler: a controller process, detached from the client, starts the nodes and looks after
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from clusterkit.core.model import LaunchPlan
from clusterkit.executors.base import Launched, SchedulerState
from clusterkit.executors.local import runs as local_runs
from clusterkit.executors.run.runfolder import RunFolder, Submission


@dataclass(frozen=True, slots=True)
class LocalJobs:
    """The executor of kind `local`."""

    def check_limits(self, plan: LaunchPlan) -> None:
        """Accept everything: nodes on one machine share what there is."""

    def launch(
        self,
        plan: LaunchPlan,
        run: RunFolder,
        *,
        hidden: Collection[str],
        handing_over: Callable[[], None],
    ) -> Launched:
        """Start the controller of this job and wait until it has begun."""
        from clusterkit.executors.local import submitit  # noqa: PLC0415 - submitit loads slowly

        return submitit.launch(plan, run, hidden=hidden, handing_over=handing_over)

    def find_lost(self, runs: Mapping[RunFolder, Submission]) -> Mapping[RunFolder, str]:
        """Return the job ids, which follow from the run ids."""
        return {run: local_runs.job_id_of(run) for run in runs if run.controller.exists()}

    def states(self, runs: Mapping[RunFolder, Submission]) -> Mapping[RunFolder, SchedulerState]:
        """Return the state of each job that has, or had, a controller on this machine."""
        found = {run: local_runs.state_of(run, submission) for run, submission in runs.items()}
        return {run: state for run, state in found.items() if state is not None}

    def fetch(self, run: RunFolder) -> None:
        """Do nothing: the nodes write into the run folder itself."""

    def exit_code(self, run: RunFolder, submission: Submission) -> int | None:
        """Return nothing: the controller has said what there is to say."""

    def tend(self, run: RunFolder, submission: Submission) -> None:
        """Do nothing: the controller starts the next attempt by itself."""

    def cancel(self, run: RunFolder, submission: Submission) -> None:
        """Ask the controller to end; end the nodes directly where there is none any more."""
        local_runs.end(run, submission)

    def lingering(self, runs: Mapping[RunFolder, Submission]) -> Collection[RunFolder]:
        """Return the jobs of which a process is left on this machine."""
        return {run for run in runs if not local_runs.is_gone(run)}


EXECUTOR = LocalJobs()
