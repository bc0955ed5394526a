"""Ask nodes whether they take a job over ssh, and say in words why one does not."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from clusterkit.core import files
from clusterkit.core.bounds import Matching, Pid, Rank
from clusterkit.core.hosts import hostlist
from clusterkit.core.records import record_of
from clusterkit.core.shell import quote_path
from clusterkit.executors.base import RefusalError
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh import send
from clusterkit.executors.ssh.layout import CHECK, SshLayout
from clusterkit.executors.ssh.nodes import NodeAnswer, ask_nodes
from clusterkit.executors.ssh.slots import Kind
from clusterkit.transport.probe import first_line
from clusterkit.transport.script import PROBES_VARIABLE

_START_S = 60.0
"""Python from a busy shared folder, and the slots."""
_NO_MODULE = "No module named"
_CANNOT_RUN = frozenset({126, 127})
"""Exit codes of sh for a program that is not there, or cannot be started."""
_STAYS = f"unset {PROBES_VARIABLE}; "
"""What it starts is no probe, to be ended with the connection."""
_WHY = 2000
"""Characters of a node's reason."""
_MODULE = "clusterkit.executors.ssh.agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why one node does not take the job, and what to type next."""

    why: str
    hint: str | None = None
    busy: bool = False
    """Whether that is because others hold its slots."""


class NodesRefuse(RefusalError):  # noqa: N818 - a state of nodes, not a mistake of anyone
    """Nodes did not take the job."""

    def __init__(self, refusals: Mapping[str, Refusal], layout: SshLayout) -> None:
        """Name the nodes, with their reasons."""
        hints = dict.fromkeys(refusal.hint for refusal in refusals.values() if refusal.hint)
        busy = [node for node, said in refusals.items() if said.busy and not said.hint]
        if busy:
            hints[_around(busy, layout)] = None
        super().__init__("\n".join(in_words(refusals)), hint="\n      ".join(hints) or None)
        self.nodes = frozenset(refusals)


class NodesBusy(NodesRefuse):
    """Nodes did not take the job, all of them because others hold their slots."""


def in_words(refusals: Mapping[str, Refusal]) -> tuple[str, ...]:
    """Return one line for each node."""
    return tuple(f"{node}: {refusal.why}" for node, refusal in refusals.items())


def _around(busy: Sequence[str], layout: SshLayout) -> str:
    """Return what to do about nodes whose slots others hold."""
    wait = "wait for those jobs or cancel them (clusterkit cancel RUN)"
    left = {host.name for host in layout.cluster.hosts}.difference(busy)
    if len(left) < len(layout.names) + len(layout.spares):
        return wait
    return f"{wait}, or leave the nodes out: --exclude {hostlist.fold_set(busy)}"


def refused(refusals: Mapping[str, Refusal], layout: SshLayout) -> NodesRefuse:
    """Return the error that says so."""
    busy = all(refusal.busy for refusal in refusals.values())
    return (NodesBusy if busy else NodesRefuse)(refusals, layout)


def ask(run: RunFolder, layout: SshLayout, slots: Mapping[str, int]) -> dict[str, Refusal]:
    """Ask these nodes whether they would take so many slots' worth of the job now.

    Nothing is started, and nothing written here: a client that dies now leaves the layout as it is.

    Raises:
        UserError: ssh's configuration cannot be read.
    """
    there = dataclasses.replace(layout, names=tuple(slots), tasks=len(slots))
    unreached = bring(run, there, whole=False)
    words = {
        node: f"{CHECK} {shlex.quote(node)} {wanted}"
        for node, wanted in slots.items()
        if node not in unreached
    }
    return unreached | tell_keepers(run, layout, words)


def bring(run: RunFolder, layout: SshLayout, *, whole: bool) -> dict[str, Refusal]:
    """Bring the files of the job to its nodes; return those that do not have them, and why.

    Raises:
        UserError: ssh's configuration cannot be read, or a file changes while it is sent.
    """
    errors = send.send_files(run, layout, whole=whole)
    return {n: Refusal(why=e.message, hint=e.hint) for n, e in errors.items()}


def tell_keepers(run: RunFolder, layout: SshLayout, words: Mapping[str, str]) -> dict[str, Refusal]:
    """Run the program of the keepers on each of these nodes; return those that refuse, and why."""
    program = f"{quote_path(layout.python)} -m {_MODULE} {quote_path(layout.folder(run))}"
    # Python looks for modules in the folder where it is started first: a home may be anybody's.
    snippets = {node: f"{_STAYS}cd / && exec {program} {more}" for node, more in words.items()}
    answers = ask_nodes(layout.cluster, snippets, timeout_s=_START_S) if snippets else {}
    said = {node: _refusal(node, answer, layout) for node, answer in answers.items()}
    return {node: refusal for node, refusal in said.items() if refusal is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWord:
    """What a node answers: who looks after it, which slots it would have, or why it refuses."""

    pid: Pid | None = None
    free: tuple[Rank, ...] | None = None
    refused: Annotated[str, Matching(f"(?s).{{1,{_WHY}}}")] | None = None
    kind: Kind = Kind.OTHER


def _refusal(node: str, answer: NodeAnswer, layout: SshLayout) -> Refusal | None:
    """Return why a node did not take the job, and what to type next; None where it did."""
    if answer.output is None:
        return Refusal(why=answer.problem or "no answer", hint="clusterkit preflight says more")
    said = _last_word(answer.output.stdout)
    if said is not None and said.refused is not None:
        hint = _hint(said.kind, node, layout)
        return Refusal(
            why=" ".join(said.refused.split()), hint=hint, busy=said.kind in {Kind.BUSY, Kind.TWICE}
        )
    if answer.output.exit_code == 0:
        taken = said is not None and (said.pid is not None or said.free is not None)
        return None if taken else Refusal(why="answers nonsense: it was asked to take the job")
    python, errors = layout.python, answer.output.stderr.strip()
    last = first_line(errors.splitlines()[-1])[:_WHY] if errors else ""
    last = last or f"exit code {answer.output.exit_code}"
    if _NO_MODULE in errors:
        return Refusal(
            why=last.removeprefix(f"{python}: "),
            hint=f"bring its wheel there, for {python}: docs/how-to/air-gapped.md"
            if layout.shared
            else _prepare(layout),
        )
    if answer.output.exit_code in _CANNOT_RUN:
        return Refusal(
            why=f"{python} cannot be run there",
            hint="put the environment into a folder that all nodes share, at the same path"
            if layout.shared
            else _prepare(layout),
        )
    return Refusal(why=last)


def _hint(kind: Kind, node: str, layout: SshLayout) -> str | None:
    """Return what to type next, in our words: those of a node might be pasted."""
    if kind is Kind.TWICE:
        leave_out = f"--exclude {shlex.quote(node)}"
        return f"name each machine once, or leave this name out: {leave_out}"
    if kind is Kind.RELEASE:
        return "install the same release on all nodes" if layout.shared else _prepare(layout)
    return None


def _prepare(layout: SshLayout) -> str:
    return f"clusterkit nodes prepare --cluster {layout.cluster.name}"


def _last_word(text: str) -> NodeWord | None:
    """Return what a node's last line says; None where that is nothing of ours."""
    lines = text.strip().splitlines()
    return record_of(NodeWord, files.parse_json(lines[-1].encode())) if lines else None
