"""Start the node agents of a job on all of its nodes at once; where one cannot, end the others."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path

from clusterkit.core import files
from clusterkit.core.errors import RemoteError
from clusterkit.core.model import LaunchPlan
from clusterkit.core.shell import quote_path
from clusterkit.executors.base import CancelledEarlyError, Show, untold
from clusterkit.executors.run import node_results, runfolder, submit_journal
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh import fetch, send
from clusterkit.executors.ssh.agent_files import job_id_of, read_agents
from clusterkit.executors.ssh.ask import (
    NodesBusy,
    NodesRefuse,
    ask_agents,
    ask_nodes,
    refused,
)
from clusterkit.executors.ssh.layout import SshLayout, write_layout
from clusterkit.executors.ssh.slots import SlotsBusy
from clusterkit.executors.ssh.states import order_to_end
from clusterkit.transport.ssh.session import Nonsense

_END_S = 10.0


def layout_of(plan: LaunchPlan, run: RunFolder, *, later: bool = False) -> SshLayout:
    """Return what the nodes of a plan have to know; it may be to start `later`.

    Raises:
        UserError: the plan asks for what this release does not do over ssh.
    """
    names = plan.node_names
    layout = SshLayout(
        job_id=job_id_of(run),
        names=names,
        spares=plan.spare_names,
        slots=plan.slots[: len(names)],
        tasks=1 if plan.command.once else len(names),
        least=plan.nodes if plan.max_nodes is not None else None,
        ports=plan.cluster.port_range,
        time_limit_s=plan.time_limit_s,
        command=(sys.executable, "-P", "-u", "-m", "clusterkit.executors.node", str(run.path)),
        logs=str(run.submitit),
        cluster=plan.cluster,
        sync=plan.sync,
        needs=_needs(plan),
    )
    return send.with_source(layout, run, keep=later or bool(plan.spares))


def _needs(plan: LaunchPlan) -> tuple[str, ...]:
    """Return what a job needs of its nodes that nobody brings them."""
    if plan.cluster.shared_filesystem or plan.sync is not None or plan.container is not None:
        return ()
    script = (str(Path(plan.workdir) / plan.script),) if plan.script_kind.is_file else ()
    return (plan.workdir, *script)


def start(run: RunFolder, layout: SshLayout, show: Show = untold) -> None:
    """Start a node agent on each node, all at once; where one does not start, none is left.

    Raises:
        CancelledEarlyError: a node agent ended at once, because the job is cancelled.
        NodesBusy: others hold the slots of nodes; it is as if nothing had been started.
        NodesRefuse: a node did not take the job; each of them, with the reason.
        UserError: the run folder cannot be written, or ssh's configuration not be read.
    """
    write_layout(run, layout)
    for folder in (run.agents, run.ends):
        runfolder.create_state_folder(run, folder)
    unreached = send.send_files(run, layout, whole=True, show=show)
    if unreached:
        raise NodesRefuse(unreached, layout)
    before = {path.name: path.read_text("utf-8", "replace") for path in run.agents.glob("*.json")}
    submit_journal.hand_over(run)
    nodes = layout.names[: layout.tasks]
    arguments = {name: f"{rank} {layout.attempt}" for rank, name in enumerate(nodes)}
    refusals = ask_agents(run, layout, arguments)
    if not refusals:
        with suppress(RemoteError):  # whoever looks next asks again
            fetch.fetch(run, layout)
        return
    if run.cancelled.exists():
        with suppress(RemoteError):
            end(run, layout)
        raise CancelledEarlyError("it was cancelled while it was being started")
    error, silent = refused(refusals, layout), frozenset[str]()
    if isinstance(error, NodesBusy):
        silent = _withdraw(run, layout, arguments.keys() - refusals.keys(), before)
        if not silent:
            raise error
    # Who did start, or still does, finds the job cancelled, or this attempt failed.
    if layout.attempt:
        _note_refusal(run, layout, refusals, silent)
    else:
        files.create_text(run.cancelled, "")
    with suppress(RemoteError):
        end(run, layout)
    raise NodesRefuse(refusals, layout)


def _withdraw(
    run: RunFolder, layout: SshLayout, started: Set[str], before: Mapping[str, str]
) -> frozenset[str]:
    """End node agents that wait for nodes which are busy, and leave no trace of them.

    Return the nodes on which one may still be. They are killed: an agent that is told to end writes
    down how its attempt ended, and this one is to count as none. `before` is what stood in
    `keepers/` by the names of the files.
    """
    if not started:
        return frozenset()
    with suppress(RemoteError):
        fetch.fetch(run, layout, again=True)
    agents = [k for k in read_agents(run) if k.node in started and k.attempt == layout.attempt]
    results = (run.result(rank, layout.attempt) for rank in range(len(layout.names)))
    traces = (run.failures / f"{layout.attempt}.json", *results)
    snippets = {}
    for agent in agents:
        there = (run.agent(agent.rank), *traces)
        names = " ".join(path.relative_to(run.path).as_posix() for path in there)
        forget = f"cd {quote_path(layout.folder(run))} && rm -f {names}"
        snippets[agent.node] = f"{order_to_end(agent, run, signal='KILL')}; {forget}"
    answers = ask_nodes(layout.cluster, snippets, timeout_s=_END_S)
    silent = started - {
        node for node, answer in answers.items() if not isinstance(answer, RemoteError)
    }
    if not silent:
        for path in (*traces, *(run.agent(agent.rank) for agent in agents)):
            files.remove(path)
        for name, text in before.items():
            files.write_text(run.agents / name, text)
    return frozenset(silent)


def _note_refusal(
    run: RunFolder, layout: SshLayout, refusals: Mapping[str, RemoteError], silent: Set[str]
) -> None:
    """Note the first node that is to blame, which is none that others use at this moment."""
    why = dict.fromkeys(
        (node for node, error in refusals.items() if not isinstance(error, SlotsBusy)),
        "did not take the job",
    )
    why |= dict.fromkeys(silent, "did not answer any more")
    node = min(why, key=layout.names.index)
    failure = node_results.lost(layout.names.index(node), node, why[node])
    node_results.note_failure(run, failure, attempt=layout.attempt, n_nodes=len(layout.names))


def end(run: RunFolder, layout: SshLayout) -> None:
    """Tell every node agent that lives to end its node.

    Raises:
        RemoteError: a node that may have one says nothing, or nonsense; all others have been told.
    """
    errors = fetch.fetch(run, layout, again=True, brief=True) or {}
    agents = {agent.node: agent for agent in read_agents(run) if agent.ended_as is None}
    snippets = {node: order_to_end(agent, run) for node, agent in agents.items()}
    if run.cancelled.exists():
        # Written there as well, because a node may not see for a while what was written here.
        folder = quote_path(layout.folder(run))
        note = f"if [ -d {folder} ]; then : >>{folder}/{run.cancelled.name}; fi; "
        everywhere = not layout.shared and run.agents.is_dir()
        recipients = layout.names[: layout.tasks] if everywhere else snippets
        snippets = {node: note + snippets.get(node, ":") for node in recipients}
    answers = ask_nodes(layout.cluster, snippets, timeout_s=_END_S)
    silent = [node for node, answer in answers.items() if isinstance(answer, RemoteError)]
    why = [f"no answer from {', '.join(silent)}"] if silent else []
    why += [str(e) for n, e in errors.items() if isinstance(e, Nonsense) and n not in silent]
    if why:
        raise RemoteError(
            "\n".join(why),
            hint="all others were told to end; a node that they cannot reach ends by itself, "
            "else cancel again later",
        )
