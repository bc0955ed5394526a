"""What Slurm says of nodes before they are asked, and what it says of no node at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from clusterkit.core.commands import MISSING, TIMED_OUT, run_command
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.hosts.hostlist import expand, fold
from clusterkit.transport import slurm_nodes
from clusterkit.transport.base import Reply, Transport
from clusterkit.transport.probe import Reach, ReachProblem, Unparsed, first_line
from clusterkit.transport.script import Compound
from clusterkit.transport.slurm_nodes import ASLEEP, SOON, asleep, faults, states_of

_BUSY = frozenset({"ALLOCATED", "COMPLETING"})
_DENIED = "Access/permission denied"
"""ESLURM_ACCESS_DENIED."""

_NO_SLURM = re.compile(
    r"unable to contact slurm controller|establish a configuration source|DNS SRV lookup failed"
    r"|authentication (error|failure)|munge|zero bytes were transmitted",
    re.IGNORECASE,
)
"""Words of a Slurm that does not answer: they say nothing of any node."""
_REQUEST_REFUSED = re.compile(
    r"invalid (partition|account|qos|wckey)|unable to confirm allocation|unrecognized option"
    r"|violates accounting/QOS policy",
    re.IGNORECASE,
)
"""Words of a Slurm that would refuse the request whatever the nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What Slurm says of one node."""

    states: tuple[str, ...]
    words: str
    """Its state as sinfo writes it, with the reason that somebody left."""

    @property
    def given(self) -> bool:
        """Whether Slurm gives it to new jobs, busy or not, powered down or not."""
        return not {*faults(self.states)} & {*slurm_nodes.CLOSED, *slurm_nodes.RESERVED}

    @property
    def partly_taken(self) -> bool:
        """Whether other jobs have a part of it."""
        return "MIXED" in self.states

    @property
    def asleep(self) -> str:
        """Why nobody but a job may ask it; empty where it is up."""
        return asleep(self.states) if self.given else ""

    def problem(self, *, in_job: bool) -> tuple[ReachProblem, str] | None:
        """Return why no step is to be started there; within a job's allocation `in_job`."""
        states = {*faults(self.states)}
        if states & slurm_nodes.DEAD.keys() or not (in_job or self.given):
            return ReachProblem.SCHEDULER, self.words
        among = {s: why for s, why in ASLEEP.items() if not (in_job and s in SOON)}
        if sleeps := asleep(self.states, among=among):
            return ReachProblem.DEFERRED, sleeps
        if states & _BUSY and not in_job:
            return ReachProblem.BUSY, self.words
        return None


def standings(nodes: Sequence[str]) -> dict[str, Standing]:
    """Return what Slurm says of each of these nodes; nothing where it cannot be asked.

    A node that it hides is powered down. One that it does not know is down.

    Raises:
        RemoteError: Slurm does not answer.
    """
    listed = _sinfo(nodes, "--all", "--format=%N|%T|%E") if nodes else None
    if listed is None:
        return {}
    found: dict[str, Standing] = {}
    for line in listed.splitlines():
        node, _, said = line.strip().partition("|")
        state, _, reason = said.partition("|")
        try:
            states = states_of(state)
        except Unparsed:
            states = ("UNKNOWN",)
        silent = "not responding" if "NOT_RESPONDING" in states else ""
        why = silent if reason in {"", "none"} else reason
        found[node] = Standing(states=states, words=f"{state}: {why}" if why else state)
    if missing := [node for node in nodes if node not in found]:
        hidden = _hidden()
        stranger = Standing(states=("UNKNOWN",), words="Slurm knows no node of this name")
        known = frozenset(partition_nodes())
        unlisted = {node: hidden if node in known else stranger for node in missing}
        found |= {node: standing for node, standing in unlisted.items() if standing is not None}
    return found


def asleep_among(nodes: Sequence[str]) -> dict[str, str]:
    """Return those of the nodes that only a job may wake, and why; none where Slurm is silent."""
    try:
        found = standings(nodes)
    except RemoteError:
        return {}  # nodes are asked another way for that very reason
    return {node: why for node in found if (why := found[node].asleep)}


def _hidden() -> Standing | None:
    """Return what is to be thought of nodes that sinfo does not list; None where none can sleep."""
    config = run_command(("scontrol", "show", "config")).output
    if re.search(r"^ResumeProgram\s*=\s*\(null\)", config, re.MULTILINE):
        return None
    private = re.search(r"^PrivateData\s*=.*\bnodes\b", config, re.MULTILINE)
    state = "HIDDEN" if private else "POWERED_DOWN"
    return Standing(states=(state,), words=ASLEEP[state])


def out_of_service(nodes: Sequence[str]) -> dict[str, str]:
    """Return those of the nodes that Slurm gives to no new job, busy or not, and why."""
    found = standings(nodes)
    return {n: found[n].words for n in nodes if n in found and not found[n].given}


def partition_nodes(partition: str | None = None) -> tuple[str, ...]:
    """Return the nodes of a partition (of all, or several with commas), whether listed or not.

    sinfo lists no powered-down cloud nodes, unless PrivateData=cloud is set (slurm.conf(5)).
    Nothing, where Slurm does not say.
    """
    wanted = None if partition is None else frozenset(partition.split(","))
    answer = run_command(("scontrol", "--all", "--oneliner", "show", "partition"))
    nodes: dict[str, None] = {}
    for line in answer.output.splitlines() if answer.code == 0 else ():
        fields = dict(word.partition("=")[::2] for word in line.split())
        if wanted is None or fields.get("PartitionName") in wanted:
            with suppress(UserError):
                listed = fields.get("Nodes", "").replace("(null)", "")
                nodes |= dict.fromkeys(expand(listed, source="scontrol"))
    return tuple(nodes)


def raise_if_no_node_is_to_blame(program: str, errors: str) -> None:
    """Raise what `program` failed of, where that says nothing of any node.

    Raises:
        RemoteError: Slurm does not answer, or refuses the request whatever the nodes.
    """
    # "Task launch failed on node n2: Protocol authentication error" is a fault of n2.
    lines = [line for line in errors.splitlines() if " on node" not in line]
    said = [re.sub(r"^\w+: ((error|fatal): )?", "", line) for line in lines]
    silent = next((line for line in said if _NO_SLURM.search(line)), None)
    if silent is not None:
        raise RemoteError(
            f"Slurm does not answer {program}: {first_line(silent)}",
            hint="see whether `scontrol ping` is answered here, or ask by ssh: --via ssh",
        )
    refused = next((line for line in said if _REQUEST_REFUSED.search(line)), None)
    if refused is not None:
        raise RemoteError(
            f"Slurm refuses the request of {program}: {first_line(refused)}",
            hint="correct the cluster in clusterkit.yaml, or ask by ssh: --via ssh",
        )


def _sinfo(nodes: Sequence[str], *words: str) -> str | None:
    """Return what sinfo says of nodes; None where there is no sinfo, or it says nothing of any.

    With PrivateData=nodes (slurm.conf(5)) it has nothing to list.

    Raises:
        RemoteError: Slurm does not answer it.
    """
    answer = run_command(("sinfo", "--noheader", "--Node", f"--nodes={fold(nodes)}", *words))
    if answer.code == TIMED_OUT:
        raise RemoteError(f"Slurm does not answer: {answer.errors}", hint="ask by ssh: --via ssh")
    if answer.code and _DENIED in answer.errors:
        return ""
    if answer.code not in {0, MISSING}:
        raise_if_no_node_is_to_blame("sinfo", answer.errors)
    return answer.output if answer.code == 0 else None


class AwakeTransport:
    """Asks nodes of a Slurm cluster another way, and none that Slurm has powered down."""

    def __init__(self, transport: Transport) -> None:
        """Ask nobody yet."""
        self._transport = transport

    def ask(
        self, nodes: Sequence[str], compound: Compound, *, heard: Callable[[Reply], None]
    ) -> tuple[Reply, ...]:
        """Run the script on the nodes that are up; see `Transport.ask`.

        Raises:
            RemoteError: as the other transport.
        """
        replies: dict[str, Reply] = {}
        for node, why in asleep_among(nodes).items():
            reach = Reach(problem=ReachProblem.DEFERRED, detail=why, complete=False)
            replies[node] = Reply(node=node, reach=reach)
            heard(replies[node])
        up = [node for node in nodes if node not in replies]
        asked = self._transport.ask(up, compound, heard=heard) if up else ()
        replies |= {reply.node: reply for reply in asked}
        return tuple(replies[node] for node in nodes)
