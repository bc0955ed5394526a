"""What is known of a job over ssh: what its node agents wrote, and whether they still live.

The agents are the only writers of `keepers/RANK.json` and, in the end, `ends/RANK.json`. One that
says nothing of an end is looked for on its node: by pid, start time and boot, so that neither a
number used again nor a restarted machine is taken for it, and no clock has to be right.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from enum import StrEnum
from itertools import chain
from pathlib import Path

from clusterkit.core import files
from clusterkit.core.errors import ClusterkitError, RemoteError, UserError
from clusterkit.core.model import ClusterSpec, JobState
from clusterkit.core.shell import quote
from clusterkit.executors.base import SchedulerState, state_without_processes
from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.ssh import fetch
from clusterkit.executors.ssh.agent_files import NodeAgent, read_agents
from clusterkit.executors.ssh.ask import ask_nodes
from clusterkit.executors.ssh.inbox import NotWritten
from clusterkit.executors.ssh.layout import HEARTBEAT_EVERY_S, LAYOUT, read_layout
from clusterkit.executors.ssh.node_files import StillComing
from clusterkit.transport.probe import first_line
from clusterkit.transport.ssh.session import Nonsense, OutOfTime

_START_TIMEOUT_S = 90.0
"""How long a submitted job may be without node agents before nobody believes in it."""
_ASK_S = 10.0
_LATE_S = 3.5 * HEARTBEAT_EVERY_S
"""Three beats missed, and a file server that is slow with them."""
_WORST = (JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED, JobState.SUCCEEDED)


class Life(StrEnum):
    """What became of a node agent that has not written its end."""

    ALIVE = "alive"
    GONE = "gone"
    REBOOTED = "rebooted"
    SILENT = "silent"


_GONE = frozenset({Life.GONE, Life.REBOOTED})


def look_for(cluster: ClusterSpec, agents: Iterable[NodeAgent]) -> dict[NodeAgent, Life]:
    """Ask the nodes about node agents that have not written their end, once per node.

    Raises:
        UserError: ssh's configuration cannot be read.
    """
    by_node: dict[str, list[NodeAgent]] = {}
    for agent in agents:
        by_node.setdefault(agent.node, []).append(agent)
    snippets = {node: "\n".join(map(question, here)) for node, here in by_node.items()}
    answers = ask_nodes(cluster, snippets, timeout_s=_ASK_S, again=False)
    found = {}
    for node, here in by_node.items():
        output = answers[node]
        lines = [] if isinstance(output, RemoteError) else output.stdout.split()
        for number, agent in enumerate(here):
            life = lines[number] if number < len(lines) else Life.SILENT
            found[agent] = Life(life) if life in set(Life) else Life.SILENT
    return found


def states(runs: Mapping[RunFolder, Submission]) -> dict[RunFolder, SchedulerState]:
    """Return the state of each run that has, or may still get, agents; each node is asked once.

    Raises:
        UserError: ssh's configuration cannot be read, or what nodes say not be written here.
    """
    errors = {run: _errors_of(run) for run in runs}
    agents = {run: read_agents(run) for run in runs}
    lives: dict[NodeAgent, Life] = {
        agent: _life_of(errors[run][agent.node])
        for run in runs
        for agent in agents[run]
        if agent.node in errors[run]
    }
    open_ended = {
        run: _given_up_last(
            run, [k for k in agents[run] if k.ended_as is None and k.node not in errors[run]]
        )
        for run in runs
    }
    # One node agent of each run, and the others only where that one does not live.
    lives |= _look_for_runs(runs, {run: there[:1] for run, there in open_ended.items()})
    silent = {
        run: there[1:]
        for run, there in open_ended.items()
        if there and lives.get(there[0]) is not Life.ALIVE
    }
    lives |= _look_for_runs(runs, silent)
    # A node agent may have written its last word, and left, between the two looks.
    gone = {agent for agent, life in lives.items() if life in _GONE}
    for run in runs:
        lives |= _after_last_words(run, gone.intersection(agents[run]))
    agents |= {run: read_agents(run) for run in runs if gone.intersection(agents[run])}
    found = {
        run: state_of(run, runs[run], agents[run], lives, problems=_problems(errors[run]))
        for run in runs
    }
    return {run: state for run, state in found.items() if state is not None}


def lingering(runs: Mapping[RunFolder, Submission]) -> set[RunFolder]:
    """Return the runs of which an agent lives on a node that answers, asking each cluster once."""
    agents = {run: read_agents(run) for run in runs}
    lives = _look_for_runs(runs, agents)
    return {run for run, there in agents.items() if Life.ALIVE in map(lives.get, there)}


def _errors_of(run: RunFolder) -> Mapping[str, RemoteError]:
    """Bring what nodes have written, where it is not in this folder; return who could not say it.

    What keeps one run from being written is no reason to tell nothing of the others.
    """
    with suppress(UserError):
        return fetch.fetch(run, read_layout(run)) or {}
    return {}


def _life_of(error: RemoteError) -> Life:
    """Return what is known of a node agent whose node gives no whole answer."""
    return Life.ALIVE if isinstance(error, StillComing) else Life.SILENT


def _problems(errors: Mapping[str, RemoteError]) -> dict[str, str]:
    """Return what is wrong with nodes that did answer."""
    telling = (Nonsense, NotWritten, OutOfTime)
    return {n: first_line(e.message) for n, e in errors.items() if isinstance(e, telling)}


def _after_last_words(run: RunFolder, gone: Set[NodeAgent]) -> dict[NodeAgent, Life]:
    """Bring what agents wrote last where it is not in this folder; return whom that puts right.

    Nobody has gone without a word as long as the word may still be on its way.
    """
    if not gone:
        return {}
    layout = read_layout(run)
    if layout.shared:
        return {}
    errors = fetch.fetch(run, layout, again=True, gone={agent.node for agent in gone})
    if errors is None:
        return dict.fromkeys(gone, Life.ALIVE)
    return {agent: _life_of(errors[agent.node]) for agent in gone if agent.node in errors}


def _look_for_runs(
    runs: Mapping[RunFolder, Submission], agents: Mapping[RunFolder, Sequence[NodeAgent]]
) -> dict[NodeAgent, Life]:
    """Look for these node agents of each run, with one question for each cluster."""
    lives: dict[NodeAgent, Life] = {}
    there = {run: found for run, found in agents.items() if found}
    for cluster in {runs[run].cluster for run in there}:
        here = {run: found for run, found in there.items() if runs[run].cluster == cluster}
        with suppress(UserError):  # whose layout is gone is told by what it left
            lives |= look_for(_cluster_of(here), chain(*here.values()))
    return lives


def _cluster_of(runs: Collection[RunFolder]) -> ClusterSpec:
    """Return how the nodes are reached, by the latest of some runs that can still say it.

    Raises:
        UserError: none can.
    """
    *latest, first = sorted(runs, key=lambda run: run.path.stat().st_mtime, reverse=True)
    for run in latest:
        with suppress(UserError):
            return read_layout(run).cluster
    return read_layout(first).cluster


def _given_up_last(run: RunFolder, agents: Sequence[NodeAgent]) -> list[NodeAgent]:
    """Return them with that of a node which the others have given up last: it hardly answers."""
    if not agents:
        return []
    first = node_results.first_failure(run, max(k.attempt for k in agents))
    gone = first.node if first is not None and first.lost is not None else None
    return sorted(agents, key=lambda agent: agent.node == gone)


def state_of(
    run: RunFolder,
    submission: Submission,
    agents: tuple[NodeAgent, ...],
    lives: Mapping[NodeAgent, Life],
    *,
    problems: Mapping[str, str] = {},
) -> SchedulerState | None:
    """Conclude the state of a run from its node agents; None where there is nothing to go by.

    `problems` say what is wrong with nodes that answer, and cannot be believed.
    """
    if not agents:
        return state_without_processes(run, submission, run.path / LAYOUT, _START_TIMEOUT_S)
    attempt = max(agent.attempt for agent in agents)
    latest = [agent for agent in agents if agent.attempt == attempt]
    state = _of_attempt(run, submission, latest, lives, problems)
    return dataclasses.replace(state, attempt=attempt)


def _of_attempt(
    run: RunFolder,
    submission: Submission,
    agents: Sequence[NodeAgent],
    lives: Mapping[NodeAgent, Life],
    problems: Mapping[str, str],
) -> SchedulerState:
    """Conclude from the node agents of the latest attempt."""
    attempt = agents[0].attempt
    results = node_results.read_results(run)
    here = results.nodes if results.attempt == attempt else ()
    done = {r.node: r.exit_code for r in here if r.exit_code == 0 or r.unwritten is not None}
    ended_as = {node: _WORST[0] if code else JobState.SUCCEEDED for node, code in done.items()}
    agents = [
        # Its node says how it ended; its own last word got lost.
        dataclasses.replace(k, ended_as=ended_as[k.node], exit_code=done[k.node])
        if k.node in done and lives.get(k) in _GONE
        else k
        for k in agents
    ]
    open_ended = {agent.node: lives.get(agent) for agent in agents if agent.ended_as is None}
    strange = "; ".join(f"{node}: {what}" for node, what in problems.items()) or None
    if Life.ALIVE in open_ended.values():
        began = min((agent.began_at for agent in agents if agent.began_at), default=None)
        return SchedulerState(state=JobState.RUNNING, word="running", reason=strange, start=began)
    first = node_results.first_failure(run, attempt)
    if first is not None:
        reason = node_results.failure_text(first)
        return _ended(JobState.FAILED, reason=reason, exit_code=first.exit_code)
    head = agents[0]
    if submission.least is not None and head.rank == 0 and head.ended_as is not None:
        return _ended(head.ended_as, exit_code=head.exit_code)  # whatever became of the others
    silent = [k for k in agents if open_ended.get(k.node, Life.GONE) in {Life.SILENT, None}]
    if silent or problems.keys() - {k.node for k in agents if k.ended_as is not None}:
        return _without_answer(run, silent, problems)
    if open_ended:
        cancelled = run.cancelled.exists()
        reason = "; ".join(_reason(node, life) for node, life in open_ended.items())
        return _ended(JobState.CANCELLED if cancelled else JobState.FAILED, reason=reason)
    return _together(submission, agents, strange)


def _without_answer(
    run: RunFolder, silent: Sequence[NodeAgent], problems: Mapping[str, str]
) -> SchedulerState:
    """Conclude from the heartbeats of agents whose nodes do not answer, where they are seen."""
    quiet = [agent.node for agent in silent if agent.node not in problems]
    strange = [f"{node}: {what}" for node, what in problems.items()]
    why = "; ".join([*([f"no answer from {', '.join(quiet)}"] if quiet else ()), *strange])
    shared = False
    with suppress(UserError):
        shared = read_layout(run).shared
    if not shared:
        return _ended(JobState.UNKNOWN, reason=why)
    ages = [_silent_for_s(run.heartbeat(agent.rank)) for agent in silent]
    known = [age for age in ages if age is not None]
    if 0.0 in known:
        return SchedulerState(
            state=JobState.RUNNING, word="running", reason=f"{why}; heartbeats go on"
        )
    last = f", nor a heartbeat for {min(known):.0f} s" if known else ""
    return _ended(JobState.UNKNOWN, reason=why + last)


def _silent_for_s(path: Path) -> float | None:
    """Return how long ago the last beat was, where it is too long; 0.0 while it beats.

    None where nobody can tell: there was none, or the folder cannot be written.
    """
    try:
        age_s = files.age_s(path)
    except ClusterkitError:
        return None
    return 0.0 if age_s < _LATE_S else age_s


def _together(
    submission: Submission, agents: Sequence[NodeAgent], strange: str | None
) -> SchedulerState:
    """Conclude from node agents that have all left a last word."""
    state = next(s for s in _WORST if s in {agent.ended_as for agent in agents})
    if state is JobState.SUCCEEDED and len(agents) < submission.tasks:
        reason = f"{len(agents)} of {submission.tasks} nodes have left a word"
        return _ended(JobState.UNKNOWN, reason=f"{reason}; {strange}" if strange else reason)
    code = next((agent.exit_code for agent in agents if agent.exit_code), 0)
    return _ended(state, exit_code=code)


def _ended(
    state: JobState, *, reason: str | None = None, exit_code: int | None = None
) -> SchedulerState:
    return SchedulerState(state=state, word="ended", reason=reason, exit_code=exit_code)


def _reason(node: str, life: Life | None) -> str:
    if life is Life.REBOOTED:
        return f"{node} was restarted"
    return f"the node agent of {node} was killed"


def question(agent: NodeAgent) -> str:
    """Return a line of sh that prints one word of `Life`."""
    lives = f"if {_is_there(agent)}; then echo alive; else echo gone; fi"
    return f"if {_is_other_boot(agent)}; then echo rebooted; else {lives}; fi"


def order_to_end(agent: NodeAgent, run: RunFolder, *, signal: str = "TERM") -> str:
    """Return a line of sh that sends a signal to this very node agent, and to no other process.

    It has to be one that was started for this run, whatever its file says.
    """
    here = f"tr '\\000' '\\n' </proc/{agent.pid}/cmdline | grep -qF {quote(run.run_id)}"
    kill = f"if {_is_there(agent)} && {here}; then kill -{signal} {agent.pid}; fi"
    return f"if {_is_other_boot(agent)}; then :; else {kill}; fi"


def _is_other_boot(agent: NodeAgent) -> str:
    return f'[ "$(cat /proc/sys/kernel/random/boot_id)" != {quote(agent.boot_id)} ]'


def _is_there(agent: NodeAgent) -> str:
    """Return a condition of sh: the process is there, started then, and is no zombie."""
    # Fields 3 and 22 of proc(5), counted from behind the command name.
    return (
        f"set -- $(sed 's/.*) //' /proc/{agent.pid}/stat 2>/dev/null);"
        f' [ "${{20:-}}" = {quote(agent.start_time)} ] && [ "$1" != Z ]'
    )
