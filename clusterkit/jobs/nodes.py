"""Whom to ask: the nodes of a job, or of a cluster, and the ways to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusterkit.core.commands import run_command
from clusterkit.core.errors import RemoteError, UserError, choices_hint
from clusterkit.core.hosts import hostlist
from clusterkit.core.hosts.slots import hosts_of_allocation
from clusterkit.core.model import ClusterSpec, JobState, LaunchPlan
from clusterkit.executors.run.runfolder import RunFolder, only_read
from clusterkit.executors.slurm.states import components_of, nodes_of
from clusterkit.executors.ssh.agent_files import read_agents
from clusterkit.executors.ssh.layout import read_layout
from clusterkit.jobs.document import name_of
from clusterkit.jobs.state.load import Job
from clusterkit.preflight.hosts import LOCALHOST, hosts_of
from clusterkit.preflight.request import PreflightOptions, refuse_nonsense
from clusterkit.preflight.targets import via_of
from clusterkit.transport.base import Transport, by_shell, by_srun, by_ssh, by_step
from clusterkit.transport.slurm_nodes import asleep_among

_STEP = "clusterkit-top"
_MARGIN_S = 5.0
_CONNECT_S = 5.0
"""To reach a node: one that does not answer is to be told of soon, and is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Nodes that are reached in one way."""

    nodes: tuple[str, ...]
    transport: Transport
    close: Callable[[], None] = lambda: None
    """Ends what the transport keeps open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is looked at."""

    cluster: str
    parts: tuple[Part, ...]
    order: tuple[str, ...]
    """The nodes as they are shown."""
    run: RunFolder | None = None
    unasked: tuple[str, ...] = ()
    why_unasked: str = ""
    steps: bool = False
    """Whether each refresh is a step of Slurm, which keeps a record of it."""
    note: str = ""
    """What is to be said of the way that was chosen."""


def of_job(job: Job, cluster: ClusterSpec | None, *, via: str | None = None) -> Subject:
    """Return the nodes of a job that runs; `cluster` is its cluster, where the settings know it.

    Of a job of somebody else no node is asked: its folder would say which, and how.

    Raises:
        UserError: it does not run, or cannot be asked this way.
        RemoteError: Slurm does not say which nodes it has.
    """
    foreign = job.run.foreign
    if foreign is not None and not job.status.state.final:
        why = only_read(job.run, foreign)
        name = job.submission.cluster
        return Subject(cluster=name, parts=(), order=(), run=job.run, why_unasked=why)
    require_running(job)
    kind = job.submission.kind
    if via is not None and via not in kind.ways:
        raise UserError(
            f"--via {via}: not for a job on a cluster of kind {kind.value}",
            hint="leave it out" if len(kind.ways) == 1 else choices_hint(via, kind.ways),
        )
    if kind.shares_machine:
        parts: tuple[Part, ...] = (Part(nodes=(LOCALHOST,), transport=by_shell()),)
    elif kind.lists_hosts:
        layout = read_layout(job.run)
        nodes = tuple(dict.fromkeys(agents_at_work(job.run).values()))
        parts = (_ssh(nodes or layout.names, layout.cluster),)
    else:
        parts = _of_slurm_job(job, cluster, via)
    return Subject(
        cluster=job.submission.cluster,
        parts=parts,
        order=tuple(node for part in parts for node in part.nodes),
        run=job.run,
        steps=kind.scheduled and via != "ssh",
    )


def agents_at_work(run: RunFolder) -> dict[int, str]:
    """Return the nodes of a job over ssh whose agents have not ended, by number."""
    return {agent.rank: agent.node for agent in read_agents(run) if agent.ended_as is None}


def of_cluster(
    cluster: ClusterSpec, options: PreflightOptions, *, allocate: bool = False
) -> Subject:
    """Return the nodes of a cluster that `options` mean.

    Slurm shows a user only the nodes of that user's own jobs, through a step in each of them; with
    `--via srun` nodes are asked in an allocation of their own, as preflight does, but for those
    that are powered down. With `allocate` so are those on which the user has no job.

    Raises:
        UserError: there are no such nodes, or no job of the user's to look through.
        RemoteError: Slurm does not say which nodes there are.
    """
    refuse_nonsense(options, cluster)
    via, note, own = via_of(options, cluster), "", None
    nodes = tuple(host.name for host in hosts_of(options, cluster, via))
    if via == "srun" and options.via is None and hosts_of_allocation(os.environ) is None:
        own = _through_own_jobs(cluster, nodes)
        if own.parts and not (allocate and own.unasked):
            return own
        nodes = own.unasked
        note = f"no job of yours runs on {hostlist.fold(nodes) if own.parts else cluster.name}"
        if not allocate:
            raise UserError(
                f"{note}, and Slurm lets you in only where one does",
                hint="--via srun allocates the nodes that are free for it; --via ssh asks all, "
                "where ssh to nodes is allowed",
            )
        note += ": the command runs there in an allocation of its own (srun)"
    on_slurm = cluster.kind.scheduled and via != "local"
    asleep = asleep_among(nodes) if on_slurm else {}
    nodes = tuple(node for node in nodes if node not in asleep)
    if via == "local":
        part = Part(nodes=nodes, transport=by_shell())
    elif via == "srun":
        wait_s = round(_CONNECT_S)
        transport = by_srun(cluster, name=_STEP, margin_s=_MARGIN_S, immediate_s=wait_s)
        part = Part(nodes=nodes, transport=transport)
    else:
        part = _ssh(nodes, cluster)
    return Subject(
        cluster=cluster.name,
        parts=(*(own.parts if own else ()), *((part,) if nodes else ())),
        order=(*(own.order if own else ()), *nodes),
        unasked=tuple(asleep),
        why_unasked=", ".join(dict.fromkeys(asleep.values())),
        steps=via == "srun",
        note=note,
    )


def of_plan(plan: LaunchPlan, job_id: str | None) -> Part:
    """Return the nodes of a job that runs, by its plan.

    Raises:
        RemoteError: Slurm does not say which they are.
    """
    kind = plan.cluster.kind
    if kind.shares_machine:
        return Part(nodes=(LOCALHOST,), transport=by_shell())
    if kind.lists_hosts:
        return _ssh(plan.node_names, plan.cluster)
    return _step(nodes_of(job_id or ""), job_id)


def require_running(job: Job) -> None:
    """Refuse to look into a job that does not run.

    Raises:
        UserError: it has ended, or has not started.
    """
    state, name = job.status.state, name_of(job)
    if state.final:
        raise UserError(f"{name} has ended: {state.value}", hint=f"clusterkit logs {name}")
    if state is not JobState.RUNNING:
        raise UserError(
            f"{name} does not run: {state.value}",
            hint=f"clusterkit logs -f {name} shows it as soon as it does",
        )


def _of_slurm_job(job: Job, cluster: ClusterSpec | None, via: str | None) -> tuple[Part, ...]:
    job_id = job.submission.job_id or ""
    components = components_of(job_id)
    if via != "ssh":
        return tuple(
            _step(nodes, job_id, *het_group(number, components))
            for number, nodes in enumerate(components)
        )
    if cluster is None:
        raise UserError(
            f"--via ssh: cluster {job.submission.cluster} is not in your clusterkit.yaml",
            hint="leave it out: srun asks the nodes of the job",
        )
    return (_ssh(tuple(node for nodes in components for node in nodes), cluster),)


def _through_own_jobs(cluster: ClusterSpec, nodes: Sequence[str]) -> Subject:
    answer = run_command(["squeue", "-h", "--me", "-t", "R", "-o", "%A|%N|%i"])
    if answer.code:
        raise RemoteError(f"Slurm does not say which jobs are yours: {answer.errors.strip()}")
    left, parts = dict.fromkeys(nodes), []
    for line in answer.output.splitlines():
        job_id, listed, named = (*line.strip().split("|"), "", "")[:3]
        leader, component, number = named.partition("+")  # of a heterogeneous job: 12+1
        mine = [node for node in hostlist.expand(listed, source="squeue") if node in left]
        for node in mine:
            left.pop(node)
        if mine:
            options = (f"--het-group={number}",) if component else ()
            parts.append(_step(tuple(mine), leader if component else job_id, *options))
    return Subject(
        cluster=cluster.name,
        parts=tuple(parts),
        order=tuple(node for node in nodes if node not in left),
        unasked=tuple(left),
        why_unasked="no job of yours there (--via ssh asks them as well)",
        steps=True,
    )


def _ssh(nodes: tuple[str, ...], cluster: ClusterSpec) -> Part:
    transport = by_ssh(cluster, keep=True, connect_timeout_s=_CONNECT_S, margin_s=_MARGIN_S)
    return Part(nodes=nodes, transport=transport, close=transport.close)


def het_group(number: int, components: Sequence[object]) -> tuple[str, ...]:
    """Return the option by which srun starts a step in one component; none where there is one."""
    return (f"--het-group={number}",) if len(components) > 1 else ()


def _step(nodes: tuple[str, ...], job_id: str | None, *options: str) -> Part:
    transport = by_step(job_id, name=_STEP, margin_s=_MARGIN_S, in_job=options)
    return Part(nodes=nodes, transport=transport)
