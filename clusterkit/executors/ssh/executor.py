"""Jobs on machines reached by SSH: no scheduler, no daemon, no root.

A node agent on each node, detached from the login that started it, does what a scheduler's daemon
does elsewhere; the run folder tells what it did, and ssh whether it still lives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from clusterkit.core import files
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import JobStatus, LaunchPlan
from clusterkit.core.timing import scaled
from clusterkit.executors.base import (
    Executor,
    Launched,
    RefusalError,
    SchedulerState,
    Show,
    untold,
)
from clusterkit.executors.run import attempts, node_results, restarts, runfolder
from clusterkit.executors.run.dependencies import Dependencies
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.ssh.agent_files import job_id_of, read_agents
from clusterkit.executors.ssh.layout import LAYOUT, SshLayout, read_layout, write_layout


class SshExecutor(Executor):
    """The executor of kind `ssh`. Whether slots are free, each node says when it is asked to start.

    What loads paramiko is imported where it is used: most questions need no node.
    """

    ask_every_s = scaled(5.0, 1.0)
    absence = "no node keeps it"

    def launch(self, plan: LaunchPlan, run: RunFolder, show: Show = untold) -> Launched:
        """Start a node agent on each node.

        Raises:
            UserError: the task cannot be written, or ssh's configuration not be read.
            RefusalError: a node did not take it.
        """
        from clusterkit.executors.ssh import ask, start  # noqa: PLC0415

        layout = start.layout_of(plan, run)
        left_out: tuple[str, ...] = ()
        if layout.least is not None:  # all nodes of any other job are needed: none is asked before
            write_layout(run, layout)
            layout, refusals = ask.on_available_nodes(run, layout)
            left_out = tuple(f"left out: {line}" for line in ask.lines(refusals))
        _start_task(run, layout, show)
        return Launched(job_id=layout.job_id, messages=left_out)

    def has_to_wait(self, dependencies: Dependencies) -> bool:
        """Tell whether a new job is queued; of an array every one: its slots may be taken."""
        return bool(dependencies.after) or dependencies.array is not None

    def queue(self, plan: LaunchPlan, run: RunFolder, dependencies: Dependencies) -> str:
        """Write the layout, and return the job id.

        A job of an array runs where there is room: its neighbours would all wait for the first
        nodes. So all other nodes are its spares.
        """
        from clusterkit.executors.ssh import start  # noqa: PLC0415

        layout = start.layout_of(plan, run, later=True)
        if dependencies.index is not None:
            names = _candidates(plan, dependencies.index)
            layout = dataclasses.replace(layout, names=names, spares=())
            layout = layout.on(names[: len(plan.node_names)])
        write_layout(run, layout)
        return layout.job_id

    def start_queued(self, run: RunFolder, submission: Submission) -> None:
        """Start a node agent on each node, if enough of them would take the job.

        Raises:
            RemoteError: too few would, and it is as if nothing had been started; or one refused in
                the last moment, which ends the job.
            UserError: the run folder cannot be read or written.
        """
        from clusterkit.executors.ssh import ask  # noqa: PLC0415

        layout, _ = ask.on_available_nodes(run, read_layout(run))
        layout = layout.restarted(layout.attempt)
        try:
            # A client that dies from there on leaves a job of which nobody can tell, and not one
            # that is started twice.
            _start_task(run, layout)
        except ask.NodesBusy:
            files.create_text(run.queued, "")
            raise
        except RefusalError as error:
            if not run.queued.exists():
                status = JobStatus(state=error.ended_as, reason=error.message)
                runfolder.write_state(run, submission, status)
            raise

    def find_lost(
        self, runs: Mapping[RunFolder, Submission]
    ) -> Mapping[RunFolder, str | RemoteError | UserError]:
        """Return the job ids, which follow from the run ids, of runs that have node agents."""
        found: dict[RunFolder, str | RemoteError | UserError] = {}
        for run in runs:
            try:
                found.update((run, error) for error in _fetch(run).values())
            except UserError as error:
                found[run] = error
            if read_agents(run):
                found[run] = job_id_of(run)
        return found

    def states(self, runs: Mapping[RunFolder, Submission]) -> Mapping[RunFolder, SchedulerState]:
        """Return the state of each job that has node agents, asking each node once."""
        from clusterkit.executors.ssh import states as ssh_states  # noqa: PLC0415

        return ssh_states.states(runs)

    def fetch(self, run: RunFolder) -> None:
        """Bring what the nodes have written, where they do not share the run folder."""
        _fetch(run)

    def restart(self, run: RunFolder, submission: Submission) -> None:
        """Start the next attempt, with spares in the place of nodes that cannot be used.

        Nothing where another client does, or just has: no machine does that by itself.

        Raises:
            RemoteError: too few nodes take the job now; it is as if nothing had been started.
            RefusalError: a node refused in the last moment; that was an attempt.
            UserError: the run folder cannot be read or written.
        """
        from clusterkit.executors.ssh import ask, start  # noqa: PLC0415
        from clusterkit.executors.ssh import states as ssh_states  # noqa: PLC0415

        with files.locked(run.starting) as mine:
            # Another client may have started it, and even seen its end, since this one looked.
            if not mine or {run.cancelled.name, run.state.name} & runfolder.listed(run.path):
                return
            known = ssh_states.states({run: submission}).get(run)
            if known is None:
                return
            attempt = max(known.attempt, node_results.latest_attempt(run))
            if not restarts.may_start_again(run, submission, known.state, attempt):
                return
            if attempts.is_restart(submission, known.state, restarts.count(run, attempt)):
                restarts.note(run, attempt, known.reason or known.word)
                if not restarts.is_due(run, attempt):
                    return
            without = node_results.left_out(run)
            layout, _ = ask.on_available_nodes(run, read_layout(run), without=without)
            start.start(run, layout.restarted(attempt + 1))

    def cancel(self, run: RunFolder, submission: Submission) -> None:
        """Tell the node agents to end."""
        from clusterkit.executors.ssh import start  # noqa: PLC0415

        del submission
        # Before there is a layout nothing was started, and what still comes finds it cancelled.
        if (run.path / LAYOUT).exists():
            start.end(run, read_layout(run))

    def lingering(self, runs: Mapping[RunFolder, Submission]) -> Collection[RunFolder]:
        """Return the jobs of which a node agent lives on a node that answers."""
        from clusterkit.executors.ssh import states as ssh_states  # noqa: PLC0415

        return ssh_states.lingering(runs)


def _start_task(run: RunFolder, layout: SshLayout, show: Show = untold) -> None:
    from clusterkit.executors.ssh import start  # noqa: PLC0415
    from clusterkit.executors.submitit_job import write_task  # noqa: PLC0415 - loads slowly

    write_task(run, layout.job_id)
    start.start(run, layout, show)


def _candidates(plan: LaunchPlan, index: int) -> tuple[str, ...]:
    """Return every node that may take the job, those first that its neighbours try last."""
    if len(set(plan.slots)) > 1 or plan.max_nodes is not None:
        return (*plan.node_names, *plan.spare_names)
    excluded = set(hostlist.expand(plan.directives.get("exclude") or ""))
    there = [
        host.name
        for host in plan.cluster.hosts
        if host.name not in excluded
        and (host.slots or plan.cluster.gpus_per_node or plan.slots[0]) >= plan.slots[0]
    ]
    first = index * plan.nodes % len(there)
    return (*there[first:], *there[:first])


def _fetch(run: RunFolder) -> Mapping[str, RemoteError]:
    """Bring what the nodes have written; return those that could not be asked, and why."""
    if not (run.path / LAYOUT).exists():
        return {}
    layout = read_layout(run)
    if layout.shared:
        return {}
    from clusterkit.executors.ssh import fetch  # noqa: PLC0415

    return fetch.fetch(run, layout) or {}


EXECUTOR = SshExecutor()
