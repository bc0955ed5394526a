"""Ask nodes whether they take a job over ssh, and say in words why one does not."""

from __future__ import annotations

import dataclasses
import re
import shlex
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated

from clusterkit.core import files, timing
from clusterkit.core.bounds import Matching, Pid, Rank
from clusterkit.core.errors import RemoteError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import ClusterSpec
from clusterkit.core.records import record_of
from clusterkit.core.shell import quote_path
from clusterkit.executors.base import RefusalError
from clusterkit.executors.run.attempts import choose_nodes
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh import send
from clusterkit.executors.ssh.layout import CHECK, SshLayout
from clusterkit.executors.ssh.slots import Kind, SlotsBusy
from clusterkit.transport.base import by_ssh
from clusterkit.transport.probe import Output, PreflightJob, Probe, ReachProblem, first_line
from clusterkit.transport.script import PROBES_VARIABLE, compose, new_token

_START_S = 60.0
"""Python from a busy shared folder, and the slots."""
_MOMENT_S = timing.scaled(5.0, 1.0)
"""Who tries to reach a node without power waits for 10 s, and a restart would do so three times."""
_unreached: dict[tuple[str, str], tuple[float, RemoteError]] = {}
"""When a node of a cluster was tried last and not reached, and why."""
_NO_MODULE = "No module named"
_CANNOT_RUN = frozenset({126, 127})
"""Exit codes of sh for a program that is missing, or cannot be started."""
_STAYS = f"unset {PROBES_VARIABLE}; "
"""What it starts is no probe, to be ended with the connection."""
_WHY = 2000
"""Characters of a node's reason."""
_HOLDER = re.compile(r"\bheld by ([\w.-]{1,49}) of \S", re.ASCII)
"""A name of 50 characters may be the end of a longer one."""
_MODULE = "clusterkit.executors.ssh.agent"


class NodesRefuse(RefusalError):  # noqa: N818 - a state of nodes, not a mistake of anyone
    """Nodes did not take the job."""

    def __init__(self, refusals: Mapping[str, RemoteError], layout: SshLayout) -> None:
        """Name the nodes, with their reasons."""
        hints = dict.fromkeys(refusal.hint for refusal in refusals.values() if refusal.hint)
        busy = {
            node: why.message
            for node, why in refusals.items()
            if isinstance(why, SlotsBusy) and not why.hint
        }
        if busy:
            hints[_around(busy, layout)] = None
        super().__init__("\n".join(lines(refusals)), hint="\n      ".join(hints) or None)
        self.nodes = frozenset(refusals)


class NodesBusy(NodesRefuse):
    """Nodes did not take the job, all of them because others hold their slots."""


def lines(refusals: Mapping[str, RemoteError]) -> tuple[str, ...]:
    """Return one line for each node."""
    return tuple(f"{node}: {refusal.message}" for node, refusal in refusals.items())


def _around(busy: Mapping[str, str], layout: SshLayout) -> str:
    """Return what to do about nodes whose slots others hold, as their messages say."""
    jobs = {job for message in busy.values() for job in _HOLDER.findall(message)}
    job, which = (jobs.pop(), "that job") if len(jobs) == 1 else ("JOB", "such a job")
    wait = f"queue it behind {which} (--after {job}:any), or end that (clusterkit cancel {job})"
    left = {host.name for host in layout.cluster.hosts}.difference(busy)
    if len(left) < len(layout.names) + len(layout.spares):
        return wait
    return f"{wait}, or leave the nodes out: --exclude {hostlist.fold_set(busy)}"


def refused(refusals: Mapping[str, RemoteError], layout: SshLayout) -> NodesRefuse:
    """Return the error that says so."""
    busy = all(isinstance(refusal, SlotsBusy) for refusal in refusals.values())
    return (NodesBusy if busy else NodesRefuse)(refusals, layout)


def ask(run: RunFolder, layout: SshLayout, slots: Mapping[str, int]) -> dict[str, RemoteError]:
    """Ask these nodes whether they would take so many slots' worth of the job now.

    Nothing is started, and nothing written here: a client that dies now leaves the layout as it is.

    Raises:
        UserError: ssh's configuration cannot be read.
    """
    there = dataclasses.replace(layout, names=tuple(slots), tasks=len(slots))
    unreached = send.send_files(run, there, whole=False)
    arguments = {
        node: f"{CHECK} {shlex.quote(node)} {count}"
        for node, count in slots.items()
        if node not in unreached
    }
    return unreached | ask_agents(run, layout, arguments, again=False)


def ask_agents(
    run: RunFolder, layout: SshLayout, arguments: Mapping[str, str], *, again: bool = True
) -> dict[str, RemoteError]:
    """Run the program of the agents on each of these nodes; return those that refuse, and why."""
    program = f"{quote_path(layout.python)} -m {_MODULE} {quote_path(layout.folder(run))}"
    scale = "".join(f"{name}={value} " for name, value in timing.passed_on().items())
    program = f"env {scale}{program}" if scale else program
    # Python looks for modules in the folder where it is started first: a home may be anybody's.
    snippets = {node: f"{_STAYS}cd / && exec {program} {more}" for node, more in arguments.items()}
    answers = ask_nodes(layout.cluster, snippets, timeout_s=_START_S, again=again)
    refusals = {node: _refusal(node, answer, layout) for node, answer in answers.items()}
    return {node: refusal for node, refusal in refusals.items() if refusal is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReply:
    """What a node answers: who looks after it, which slots it would have, or why it refuses."""

    pid: Pid | None = None
    free: tuple[Rank, ...] | None = None
    refused: Annotated[str, Matching(f"(?s).{{1,{_WHY}}}")] | None = None
    kind: Kind = Kind.OTHER


def _refusal(node: str, answer: Output | RemoteError, layout: SshLayout) -> RemoteError | None:
    """Return why a node did not take the job, and what to type next; None where it did."""
    if isinstance(answer, RemoteError):
        return RemoteError(answer.message or "no answer", hint="clusterkit preflight says more")
    reply = _last_reply(answer.stdout)
    if reply is not None and reply.refused is not None:
        refusal = SlotsBusy if reply.kind in {Kind.BUSY, Kind.TWICE} else RemoteError
        return refusal(" ".join(reply.refused.split()), hint=_hint(reply.kind, node, layout))
    if answer.exit_code == 0:
        taken = reply is not None and (reply.pid is not None or reply.free is not None)
        return None if taken else RemoteError("answers nonsense: it was asked to take the job")
    python, errors = layout.python, answer.stderr.strip()
    last = first_line(errors.splitlines()[-1])[:_WHY] if errors else ""
    last = last or f"exit code {answer.exit_code}"
    if _NO_MODULE in errors:
        return RemoteError(
            last.removeprefix(f"{python}: "),
            hint=f"bring its wheel there, for {python}: docs/how-to/air-gapped.md"
            if layout.shared
            else _prepare(layout),
        )
    if answer.exit_code in _CANNOT_RUN:
        return RemoteError(
            f"{python} cannot be run there",
            hint="put the environment into a folder that all nodes share, at the same path"
            if layout.shared
            else _prepare(layout),
        )
    return RemoteError(last)


def _hint(kind: Kind, node: str, layout: SshLayout) -> str | None:
    """Return what to type next, in our words: those of a node might be pasted."""
    if kind is Kind.TWICE:
        leave_out = f"--exclude {shlex.quote(node)}"
        return f"name each machine once, or leave this name out: {leave_out}"
    if kind is Kind.RELEASE:
        return "install the same release on all nodes" if layout.shared else _prepare(layout)
    if kind is Kind.SHARED:
        name = layout.cluster.name
        run_dir = "and a `run_dir` that this machine shares too"
        return f"`shared_filesystem: true` for cluster {name}, {run_dir}"
    return None


def _prepare(layout: SshLayout) -> str:
    return f"clusterkit nodes prepare --cluster {layout.cluster.name}"


def _last_reply(text: str) -> NodeReply | None:
    """Return what a node's last line says; None where that is nothing of ours."""
    lines = text.strip().splitlines()
    return record_of(NodeReply, files.parse_json(lines[-1].encode())) if lines else None


_NAME = "command"


def ask_nodes(
    cluster: ClusterSpec,
    snippets: Mapping[str, str],
    *,
    timeout_s: float,
    again: bool = True,
) -> dict[str, Output | RemoteError]:
    """Return what each node's own POSIX-sh snippet printed there, or why there is no output.

    All nodes are asked at once, and none is waited for longer than `timeout_s`. One that was not
    reached a moment ago is not waited for `again` where that is False.

    Raises:
        UserError: ssh's configuration cannot be read.
    """
    answers: dict[str, Output | RemoteError] = {}
    if not again:
        answers.update(
            (n, why) for n in snippets if (why := _unreached_now(cluster, n)) is not None
        )
        snippets = {node: text for node, text in snippets.items() if node not in answers}
    if not snippets:
        return answers
    job = PreflightJob(hosts=tuple(snippets))
    token = new_token()
    compounds = {
        node: compose(
            [Probe(name=_NAME, command=snippet, parse=str, timeout_s=timeout_s)], job, token=token
        )
        for node, snippet in snippets.items()
    }
    for reply in by_ssh(cluster).ask_each(compounds, on_reply=lambda _: None):
        output, node = reply.outputs.get(_NAME), reply.node
        if output is None:
            problem = str(reply.reach.problem) if reply.reach.problem else ""
            why = RemoteError(reply.reach.detail or problem, node=node)
            if reply.reach.problem in {ReachProblem.TIMEOUT, ReachProblem.UNREACHABLE}:
                _unreached[cluster.name, node] = time.monotonic(), why
            answers[node] = why
        elif output.exit_code is None:
            answers[node] = RemoteError(f"no answer within {timeout_s:g} s", node=node)
        else:
            answers[node] = output
    return answers


def _unreached_now(cluster: ClusterSpec, node: str) -> RemoteError | None:
    """Return why a node was not reached a moment ago; None where it was, or nobody tried."""
    at, why = _unreached.get((cluster.name, node), (0.0, None))
    return why if time.monotonic() - at < _MOMENT_S else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """What of `plan.json` counts here."""

    node_names: tuple[str, ...]
    slots: tuple[int, ...]


def on_available_nodes(
    run: RunFolder, layout: SshLayout, *, without: Collection[str] = ()
) -> tuple[SshLayout, dict[str, RemoteError]]:
    """Return the layout on nodes that take the job now, and why others do not.

    A spare stands in for each that does not, or that is to be left out (`without`); an elastic job
    goes without it. Nodes are only asked: `ssh.json` has to be there, and stays as it is.

    Raises:
        NodesRefuse: they are too few; each of the others, with the reason.
        RemoteError: too many are to be left out.
        UserError: ssh's configuration cannot be read.
    """
    if layout.least is not None:
        return _on_enough(run, _on_all(run, layout), without, layout.least)
    names = choose_nodes(layout.names, layout.spares, without)
    pool = [name for name in (*layout.names, *layout.spares) if name not in without]
    slots = dict(zip(names[: layout.tasks], layout.slots, strict=False))
    queried: set[str] = set()
    refusals: dict[str, RemoteError] = {}
    while slots:
        refusals |= ask(run, layout, slots)
        queried |= slots.keys()
        if len(pool) - len(refusals) < len(names):
            raise refused(refusals, layout)
        names = choose_nodes(names, pool, {*without, *refusals})
        slots = dict(zip(names[: layout.tasks], layout.slots, strict=False))
        slots = {name: count for name, count in slots.items() if name not in queried}
        if slots and layout.shared and len(set(layout.slots)) == 1:
            # One after the other, a hundred machines at work would take minutes to say so. Where
            # nothing is shared, whoever is asked gets the files of the job first.
            slots |= dict.fromkeys((n for n in pool if n not in queried), layout.slots[0])
    return layout.on(names), refusals


def _on_enough(
    run: RunFolder, layout: SshLayout, without: Collection[str], min_nodes: int
) -> tuple[SshLayout, dict[str, RemoteError]]:
    """Return the layout on all nodes that take the job now."""
    slots = dict(zip(layout.names, layout.slots, strict=True))
    candidates = {name: slots[name] for name in layout.names if name not in without}
    if len(candidates) < min_nodes:
        raise RemoteError(
            f"{', '.join(sorted(without))} cannot be used, and the job needs {min_nodes} nodes",
            hint="fix the node, or submit again with --exclude",
        )
    refusals = ask(run, layout, candidates)
    names = tuple(name for name in candidates if name not in refusals)
    if len(names) < min_nodes:
        raise refused(refusals, layout)
    available = dataclasses.replace(
        layout.on(names), slots=tuple(slots[name] for name in names), tasks=len(names)
    )
    return available, refusals


def _on_all(run: RunFolder, layout: SshLayout) -> SshLayout:
    """Return the layout of an elastic job on all nodes it may have; its last start left some out.

    Only the plan still knows them in their order, with their slots.
    """
    planned = record_of(_Planned, files.read_json(run.plan))
    if planned is None:
        return layout
    names = planned.node_names
    return dataclasses.replace(layout.on(names), slots=planned.slots[: len(names)])
