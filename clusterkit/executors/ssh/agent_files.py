"""What node agents write into the run folder: which process each is, and how it ended.

Node agents and readers of run folders import this; they have no use for ssh.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from clusterkit.core import files
from clusterkit.core.bounds import Attempt, ExitCode, Matching, Moment, NodeName, Pid, Rank
from clusterkit.core.errors import UserError
from clusterkit.core.model import JobState
from clusterkit.core.records import record_of
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh.layout import read_layout

AGENT = re.compile(r"(?P<rank>[0-9]{1,5})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFile:
    """What stands in `keepers/RANK.json`: which process looks after the node."""

    schema: int = 1
    node: NodeName
    attempt: Attempt
    pid: Pid
    start_time: Annotated[str, Matching("[0-9]{1,20}")]
    """In clock ticks since the boot of the node."""
    boot_id: Annotated[str, Matching("[0-9a-f-]{0,36}")]
    slots: tuple[Rank, ...] = ()
    began_at: Moment = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFile:
    """What stands in `ends/RANK.json`: how it has ended."""

    schema: int = 1
    node: NodeName = "-"
    attempt: Attempt
    state: JobState
    exit_code: ExitCode | None
    at: Moment = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAgent(AgentFile):
    """What stands in the files of one node agent."""

    rank: int
    ended_as: JobState | None = None
    exit_code: int | None = None


def job_id_of(run: RunFolder) -> str:
    """Return the job id of a run over ssh."""
    return f"ssh-{run.key}"


def read_agents(run: RunFolder) -> tuple[NodeAgent, ...]:
    """Return the node agents of a run in rank order; a file that cannot be read is left out.

    So is one that others can write, and one of a node that the job never had: whoever wrote it
    would have us ask, or end something on, a machine of their choice.
    """
    found = []
    known = _nodes_of(run)
    ended = runfolder.listed(run.ends)
    for name in runfolder.listed(run.agents):
        match = AGENT.fullmatch(name)
        about = files.read_json(run.agents / name, own=True) if match else None
        if match is None or about is None:
            continue
        last = files.read_json(run.ends / name, own=True) if name in ended else None
        end = record_of(EndFile, last)
        if end is not None and end.attempt == about.get("attempt"):  # else of the attempt before
            how: dict[str, Any] = {"ended_as": end.state, "exit_code": end.exit_code}
        else:
            how = {"ended_as": None, "exit_code": None}
        agent = record_of(NodeAgent, {**about, **how, "rank": int(match["rank"])})
        if agent is not None and (known is None or agent.node in known):
            found.append(agent)
    return tuple(sorted(found, key=lambda agent: agent.rank))


def _nodes_of(run: RunFolder) -> frozenset[str] | None:
    """Return the nodes that the job has or may have had; None where nobody can tell."""
    with suppress(UserError):
        layout = read_layout(run)
        return frozenset((*layout.names, *layout.spares))
    return None
