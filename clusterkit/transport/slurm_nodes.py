"""What Slurm says of its nodes before they are asked, and what it says of no node at all.

One question to the controller for all nodes, and not one from each of them: a controller that is
asked by thousands at once stops answering. Of `scontrol show node`, `answers` hands each node its
own record, as if the probe `slurm-node` had printed it there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from clusterkit.core.commands import MISSING, TIMED_OUT, run_command
from clusterkit.core.data import read_table
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.hosts.hostlist import expand, fold
from clusterkit.transport.base import Reply, Transport
from clusterkit.transport.probe import (
    Output,
    PreflightJob,
    Probe,
    Reach,
    ReachProblem,
    Unparsed,
    first_line,
)
from clusterkit.transport.script import Compound

SCONTROL_CONFIG = ("scontrol", "show", "config")
STRANGER = "Slurm knows no node of this name"
_START = re.compile(r"^NodeName=(\S+)", re.MULTILINE)
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z_]*)=")
_ONE_LINE_REASON = re.compile(r"(?<=\s)Reason=(.*?\[[^\[\]@]*@[^\[\]]*\])(?=\s|$)")
_OWN_LINE_REASON = re.compile(r"^\s+Reason=(.*)$", re.MULTILINE)
_SIGNED = re.compile(r"(.*)\[([^\[\]@]*)@([^\[\]]*)\]")
_GRES = re.compile(r"([a-z_]\w*)((?::[A-Za-z_][\w.-]*)*)(?::(\d{1,9})[KMG]?)?", re.IGNORECASE)


def _states(*groups: str) -> dict[str, str]:
    """Return the states of these groups in `node_states.tsv`, and what each means."""
    return {row["state"]: row["meaning"] for row in _STATES if row["group"] in groups}


_STATES = tuple(read_table(__file__, "node_states.tsv"))
_SYMBOLS = {row["symbol"]: row["state"] for row in _STATES if row["symbol"]}
SOON = _states("soon")
"""States of a node that is up for as long as a job has it, and not for another job."""
ASLEEP = _states("asleep", "soon")
"""States of a node that a request for it wakes, or that is not up yet; nothing against it."""
BROKEN = _states("broken")
"""States in which jobs end with their node, and none starts there."""
FAILING = _states("failing")
DEAD = _states("broken", "dead")
CLOSED = _states("broken", "dead", "failing", "drained")
"""Those in which no new job starts; when failing or drained, running ones go on."""
RESERVED = _states("reserved")
"""Those in which a node is kept for some jobs."""

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
class SlurmNode:
    """A node as the controller knows it."""

    name: str
    states: tuple[str, ...]
    """The base state first, then its flags (`IDLE`, `DRAIN`)."""
    reason: str = ""
    reason_by: str = ""
    reason_at: str = ""
    gres: Mapping[str, int] | None = None
    """Configured count by name (`gpu`); None where the record does not say."""
    features: tuple[str, ...] = ()
    cpus: int | None = None
    cpus_taken: int | None = None
    gpus_taken: int | None = None
    """GPUs that jobs have; None where Slurm does not account them (AccountingStorageTRES)."""

    @property
    def open(self) -> bool:
        """Whether Slurm gives it to new jobs, busy or not, powered down or not."""
        return is_open(self.states)

    @property
    def up(self) -> bool:
        """Whether it runs, and need not boot first."""
        return not asleep(self.states)

    @property
    def gpus(self) -> int:
        """How many GPUs it has."""
        return (self.gres or {}).get("gpu", 0)

    @property
    def free_gpus(self) -> int | None:
        """How many of its GPUs a new job may have; None where Slurm does not say."""
        if not self.open or self.states[0] == "ALLOCATED":
            return 0
        if self.gpus_taken is None:
            return self.gpus if self.states[0] == "IDLE" or not self.gpus else None
        return max(0, self.gpus - self.gpus_taken)

    @property
    def free_cpus(self) -> int | None:
        """How many of its CPUs a new job may have; None where Slurm does not say."""
        if not self.open:
            return 0
        if self.cpus is None or self.cpus_taken is None:
            return None
        return max(0, self.cpus - self.cpus_taken)

    @property
    def words(self) -> str:
        """Its state as people say it: the base, unless a flag says more of what becomes of it."""
        told = asleep(self.states) or next(
            (row["meaning"] for row in _STATES if row["state"] in self.states and not self.open), ""
        )
        return told or self.states[0].lower()


def asleep(states: Iterable[str], *, among: Mapping[str, str] = ASLEEP) -> str:
    """Return why a node of these states is not to be asked; empty where nothing speaks against."""
    return next((among[state] for state in states if state in among), "")


def is_open(states: Sequence[str]) -> bool:
    """Tell whether Slurm gives a node of these states to new jobs, busy or not, up or not."""
    return not {*faults(states)} & {*CLOSED, *RESERVED}


def faults(states: Sequence[str]) -> tuple[str, ...]:
    """Return the states that may speak against a node: one that is not up cannot respond."""
    silent = {"NOT_RESPONDING", "NO_RESPOND"} if asleep(states) else set()
    return tuple(state for state in states if state not in silent)


def query(hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the command that prints the records of `hosts`; for the client, inside LC_ALL=C."""
    return ("scontrol", "--oneliner", "show", "node", fold(dict.fromkeys(hosts)))


def answers(hosts: Sequence[str], output: Output) -> Mapping[str, Output]:
    """Return what `slurm-node` printed on each of `hosts`, from the one output of `query`.

    scontrol prints the records of the nodes that it knows and exits 1 where it lacks one.
    """
    records = split_records(output.stdout)
    if not records:
        return dict.fromkeys(hosts, output)
    unknown = Output(stdout="", stderr=STRANGER, exit_code=1)
    return {host: Output(stdout=records[host]) if host in records else unknown for host in hosts}


def split_records(text: str) -> Mapping[str, str]:
    """Return the record of each node, of one line or of many; other lines are left out."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if start := _START.match(line):
            current = found.setdefault(start[1], [])
            current.append(line)
        elif line.startswith((" ", "\t")) and current:
            current.append(line)
        else:
            current = []
    return {name: "\n".join(lines) + "\n" for name, lines in found.items()}


def parse(text: str) -> SlurmNode:
    """Read one record of `scontrol show node`, Slurm 20.11 to 25.11.

    A value may hold blanks (OS) and "=" (CfgTRES); a reason holds anything and so is taken out
    before the rest is looked at.
    """
    if len(_START.findall(text)) != 1 or not text.startswith("NodeName="):
        raise Unparsed("not the record of one node")
    pattern = _OWN_LINE_REASON if "\n" in text.strip() else _ONE_LINE_REASON
    found = pattern.search(text)
    rest = text[: found.start()] + text[found.end() :] if found else text
    parts = _FIELD.split(rest)
    fields: dict[str, str] = {}
    for key, value in zip(parts[1::2], parts[2::2], strict=True):
        fields.setdefault(key, value.strip())
    if not fields.get("NodeName") or not fields.get("State"):
        raise Unparsed("no NodeName or no State")
    written = (found[1] if found else fields.get("Reason", "")).strip()
    signed = _SIGNED.fullmatch(written)
    return SlurmNode(
        name=fields["NodeName"],
        states=states_of(fields["State"]),
        reason=signed[1].rstrip() if signed else written,
        reason_by=signed[2] if signed else "",
        reason_at=signed[3] if signed else "",
        gres=_gres(fields["Gres"]) if "Gres" in fields else None,
        features=_listed(fields.get("ActiveFeatures", fields.get("Features", ""))),
        cpus=_count(fields.get("CPUEfctv", fields.get("CPUTot", ""))),
        cpus_taken=_count(fields.get("CPUAlloc", "")),
        gpus_taken=_gpus_taken(fields),
    )


def _count(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _gpus_taken(fields: Mapping[str, str]) -> int | None:
    """Read `cpu=8,gres/gpu=2,gres/gpu:a100=2` of AllocTRES, which lists what is not 0."""
    if "gres/gpu=" not in fields.get("CfgTRES", ""):
        return None
    taken = dict(item.partition("=")[::2] for item in fields.get("AllocTRES", "").split(","))
    return _count(taken.get("gres/gpu", "0"))


def states_of(text: str) -> tuple[str, ...]:
    """Return the states in the words of scontrol or sinfo: the base first, symbols as flags.

    Raises:
        Unparsed: it is no state.
    """
    found: dict[str, None] = {}
    for word in text.upper().removesuffix("+").split("+"):
        name = word.rstrip("*~%#!$@^-")
        if not re.fullmatch(r"[A-Z_]{2,30}", name):
            raise Unparsed(f"state {text[:40]!r}")
        found[name] = None
        for symbol in word[len(name) :]:
            if symbol in _SYMBOLS:
                found[_SYMBOLS[symbol]] = None
    return tuple(found)


def _gres(text: str) -> Mapping[str, int]:
    """Read `gpu:a100:8(S:0-1),nic:2`; the part in parentheses names sockets."""
    counts: dict[str, int] = {}
    for item in _listed(re.sub(r"\([^()]*\)", "", text) if text != "(null)" else text):
        match = _GRES.fullmatch(item)
        if match is None:
            raise Unparsed(f"Gres {text[:60]!r}")
        counts[match[1]] = counts.get(match[1], 0) + int(match[3] or 1)
    return counts


def _listed(text: str) -> tuple[str, ...]:
    return () if text in {"", "(null)", "N/A"} else tuple(filter(None, text.split(",")))


def _not_there(job: PreflightJob) -> None:
    """Ask nothing on the nodes: the client asks the controller."""


PROBE = Probe(name="slurm-node", command=_not_there, parse=parse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What Slurm says of one node."""

    states: tuple[str, ...]
    words: str
    """Its state as sinfo writes it, with the reason that somebody left."""

    @property
    def given(self) -> bool:
        """Whether Slurm gives it to new jobs, busy or not, powered down or not."""
        return is_open(self.states)

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
        if states & DEAD.keys() or not (in_job or self.given):
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
        node, _, described = line.strip().partition("|")
        state, _, reason = described.partition("|")
        try:
            states = states_of(state)
        except Unparsed:
            states = ("UNKNOWN",)
        silent = "not responding" if "NOT_RESPONDING" in states else ""
        why = silent if reason in {"", "none"} else reason
        found[node] = Standing(states=states, words=f"{state}: {why}" if why else state)
    if missing := [node for node in nodes if node not in found]:
        hidden = _hidden()
        stranger = Standing(states=("UNKNOWN",), words=STRANGER)
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


def unknown_among(nodes: Iterable[str]) -> frozenset[str]:
    """Return those of the nodes of which Slurm says that it has none of that name.

    None where it is silent, as it is where it knows none of them.
    """
    with suppress(RemoteError):
        found = standings(sorted(set(nodes)))
        return frozenset(name for name, node in found.items() if node.words == STRANGER)
    return frozenset()


def parse_settings(text: str) -> dict[str, str]:
    """Return the `Name = value` lines of `scontrol show config`."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def read_settings(*, timeout_s: float = 30.0) -> dict[str, str]:
    """Ask Slurm for its settings; there are none where it does not answer."""
    answer = run_command(SCONTROL_CONFIG, timeout_s=timeout_s)
    return parse_settings(answer.output)


def _hidden() -> Standing | None:
    """Return what is to be thought of nodes that sinfo does not list; None where none can sleep."""
    settings = read_settings()
    if settings.get("ResumeProgram") == "(null)":
        return None
    private = re.search(r"\bnodes\b", settings.get("PrivateData", ""))
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
    partitions = None if partition is None else frozenset(partition.split(","))
    answer = run_command(("scontrol", "--all", "--oneliner", "show", "partition"))
    nodes: dict[str, None] = {}
    for line in answer.output.splitlines() if answer.code == 0 else ():
        fields = dict(word.partition("=")[::2] for word in line.split())
        if partitions is None or fields.get("PartitionName") in partitions:
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
    messages = [re.sub(r"^\w+: ((error|fatal): )?", "", line) for line in lines]
    silent = next((line for line in messages if _NO_SLURM.search(line)), None)
    if silent is not None:
        raise RemoteError(
            f"Slurm does not answer {program}: {first_line(silent)}",
            hint="see whether `scontrol ping` is answered here, or ask by ssh: --via ssh",
        )
    refused = next((line for line in messages if _REQUEST_REFUSED.search(line)), None)
    if refused is not None:
        raise RemoteError(
            f"Slurm refuses the request of {program}: {first_line(refused)}",
            hint="correct the cluster in clusterkit.yaml, or ask by ssh: --via ssh",
        )


def known_nodes(nodes: Sequence[str]) -> tuple[SlurmNode, ...]:
    """Return what Slurm says of each of these nodes, in this order; nothing is asked of them.

    One that Slurm does not show is `HIDDEN`.

    Raises:
        RemoteError: Slurm does not answer, or in no known way.
    """
    answer = run_command(query(nodes))
    records = split_records(answer.output)
    if not records:
        said = first_line(answer.errors or answer.output) or f"exit code {answer.code}"
        raise RemoteError(f"scontrol show node: {said}", hint="clusterkit doctor")
    hidden = {name: SlurmNode(name=name, states=("HIDDEN",)) for name in nodes}
    try:
        return tuple((hidden | {n: parse(records[n]) for n in nodes if n in records}).values())
    except Unparsed as error:
        raise RemoteError(f"scontrol show node: {error}", hint="clusterkit doctor") from error


def _sinfo(nodes: Sequence[str], *arguments: str) -> str | None:
    """Return what sinfo says of nodes; None where there is no sinfo, or it says nothing of any.

    With PrivateData=nodes (slurm.conf(5)) it has nothing to list.

    Raises:
        RemoteError: Slurm does not answer it.
    """
    answer = run_command(("sinfo", "--noheader", "--Node", f"--nodes={fold(nodes)}", *arguments))
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
        self, nodes: Sequence[str], compound: Compound, *, on_reply: Callable[[Reply], None]
    ) -> tuple[Reply, ...]:
        """Run the script on the nodes that are up; see `Transport.ask`.

        Raises:
            RemoteError: as the other transport.
        """
        replies: dict[str, Reply] = {}
        for node, why in asleep_among(nodes).items():
            reach = Reach(problem=ReachProblem.DEFERRED, detail=why, complete=False)
            replies[node] = Reply(node=node, reach=reach)
            on_reply(replies[node])
        up = [node for node in nodes if node not in replies]
        answered = self._transport.ask(up, compound, on_reply=on_reply) if up else ()
        replies |= {reply.node: reply for reply in answered}
        return tuple(replies[node] for node in nodes)
