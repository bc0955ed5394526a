"""Hold a job over ssh, and start it later, from any machine that reaches its nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from clusterkit import files, hostlist, runfolder
from clusterkit.attempts import choose_nodes
from clusterkit.executors import ssh_start
from clusterkit.executors.base import RefusalError
from clusterkit.executors.ssh_layout import SshLayout, read_layout, write_layout
from clusterkit.model import JobState, JobStatus, LaunchPlan
from clusterkit.runfolder import RunFolder, Submission
from clusterkit.ties import Ties

_CANDIDATES = "candidates.json"
"""The nodes that a job of an array may run on, in the order in which they are tried."""


def hold(plan: LaunchPlan, run: RunFolder, ties: Ties, *, hidden: Collection[str]) -> str:
    """Write the layout, and return the job id.

    A job of an array runs where there is room: its neighbours would all wait for the first nodes.
    """
    del hidden  # nothing of this process's environment goes to the nodes
    layout = ssh_start.layout_of(plan, run, later=True)
    if ties.index is not None:
        names = _candidates(plan, ties.index)
        files.write_json(run.path / _CANDIDATES, {"nodes": names})
        layout = layout.on(names[: len(layout.names)])
    write_layout(run, layout)
    return layout.job_id


def _candidates(plan: LaunchPlan, index: int) -> tuple[str, ...]:
    """Return every node that may take the job, those first that its neighbours try last."""
    if len(set(plan.slots)) > 1 or plan.max_nodes is not None:
        return plan.node_names
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
    """Start a keeper on each node, if all of them would take the job.

    Raises:
        RemoteError: too few would, and nothing was started; or one refused in the last moment,
            which ends the job.
        UserError: the run folder cannot be read or written.
    """
    from clusterkit.executors.ssh_executor import TaskExecutor  # noqa: PLC0415 - loads slowly
    from clusterkit.executors.submitting import launch_by  # noqa: PLC0415

    layout = _on_free_nodes(run, read_layout(run))
    try:
        launch_by(TaskExecutor(run, layout, lambda: None), run)
    except RefusalError as error:
        status = JobStatus(state=JobState.FAILED, reason=error.message)
        runfolder.write_state(run, submission, status)
        raise


def _on_free_nodes(run: RunFolder, layout: SshLayout) -> SshLayout:
    """Return the layout with nodes that would take the job at this moment."""
    candidates: list[str] = (files.read_json(run.path / _CANDIDATES) or {}).get("nodes", [])
    without: set[str] = set()
    while True:
        try:
            ssh_start.check(run, layout)
        except ssh_start.NodesRefuse as error:
            without |= error.nodes
            others = [name for name in candidates if name not in without]
            if len(others) >= len(layout.names) and layout.shared:
                without |= _refusing(run, layout, tuple(others))
            if len(candidates) - len(without) < len(layout.names):
                write_layout(run, layout)
                raise
        else:
            return layout
        layout = layout.on(choose_nodes(layout.names, candidates, without))
        write_layout(run, layout)


def _refusing(run: RunFolder, layout: SshLayout, names: tuple[str, ...]) -> frozenset[str]:
    """Ask all of these nodes at once which of them would not take a part of the job.

    One after the other, a hundred machines at work would take minutes to say so. Where nothing is
    shared, whoever is asked gets the files of the job first, so there they are asked by turns.
    """
    slots = layout.slots[:1] * len(names)
    everywhere = dataclasses.replace(layout.on(names), slots=slots, tasks=len(names))
    write_layout(run, everywhere)
    try:
        ssh_start.check(run, everywhere)
    except ssh_start.NodesRefuse as error:
        return error.nodes
    return frozenset()
