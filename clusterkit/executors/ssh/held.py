"""Hold a job over ssh, and start it later, from any machine that reaches its nodes."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Collection

from clusterkit.core import files
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import JobState, JobStatus, LaunchPlan
from clusterkit.executors.base import RefusalError
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.dependencies import Ties
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.ssh import start
from clusterkit.executors.ssh.ask import NodesBusy
from clusterkit.executors.ssh.choose_nodes import on_willing_nodes
from clusterkit.executors.ssh.layout import read_layout, write_layout


def hold(plan: LaunchPlan, run: RunFolder, ties: Ties, *, hidden: Collection[str]) -> str:
    """Write the layout, and return the job id.

    A job of an array runs where there is room: its neighbours would all wait for the first nodes.
    So all other nodes are its spares.
    """
    del hidden  # nothing of this process's environment goes to the nodes
    layout = start.layout_of(plan, run, later=True)
    if ties.index is not None:
        names = _candidates(plan, ties.index)
        layout = dataclasses.replace(layout, names=names, spares=()).on(names[: len(layout.names)])
    write_layout(run, layout)
    return layout.job_id


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


def release(run: RunFolder, submission: Submission) -> None:
    """Start a keeper on each node, if enough of them would take the job.

    Raises:
        RemoteError: too few would, and it is as if nothing had been started; or one refused in the
            last moment, which ends the job.
        UserError: the run folder cannot be read or written.
    """
    from clusterkit.executors.ssh.submit import TaskExecutor  # noqa: PLC0415 - loads slowly
    from clusterkit.executors.submitit_driver import launch_by  # noqa: PLC0415

    layout, _ = on_willing_nodes(run, read_layout(run))
    layout = dataclasses.replace(layout, token=secrets.token_hex(16))
    try:
        # A client that dies from there on leaves a job of which nobody can tell, and not one that
        # is started twice.
        launch_by(TaskExecutor(run, layout, lambda: files.remove(run.held)), run)
    except NodesBusy:
        files.create_text(run.held, "")
        raise
    except RefusalError as error:
        if not run.held.exists():
            status = JobStatus(state=JobState.FAILED, reason=error.message)
            runfolder.write_state(run, submission, status)
        raise
