"""Ask nodes whether they take a job over ssh, and say in words why one does not."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterkit import hostlist
from clusterkit.executors import ssh_copy
from clusterkit.executors.base import RefusalError
from clusterkit.executors.ssh_layout import CHECK, SshLayout
from clusterkit.executors.ssh_nodes import NodeAnswer, ask_nodes
from clusterkit.probes.compound import PROBES_VARIABLE
from clusterkit.runfolder import RunFolder
from clusterkit.shell import quote_path

_START_S = 60.0
"""Python from a busy shared folder, and the slots."""
_NO_MODULE = "No module named"
_CANNOT_RUN = frozenset({126, 127})
"""Exit codes of sh for a program that is not there, or cannot be started."""
_STAYS = f"unset {PROBES_VARIABLE}; "
"""What it starts is no probe, to be ended with the connection."""
_MODULE = "clusterkit.executors.ssh_keeper"


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
    errors = ssh_copy.send_files(run, layout, whole=whole)
    return {n: Refusal(why=e.message, hint=e.hint) for n, e in errors.items()}


def tell_keepers(run: RunFolder, layout: SshLayout, words: Mapping[str, str]) -> dict[str, Refusal]:
    """Run the program of the keepers on each of these nodes; return those that refuse, and why."""
    program = f"{quote_path(layout.python)} -m {_MODULE} {quote_path(layout.folder(run))}"
    snippets = {node: f"{_STAYS}exec {program} {more}" for node, more in words.items()}
    answers = ask_nodes(layout.cluster, snippets, timeout_s=_START_S) if snippets else {}
    said = {node: _refusal(answer, layout) for node, answer in answers.items()}
    return {node: refusal for node, refusal in said.items() if refusal is not None}


def _refusal(answer: NodeAnswer, layout: SshLayout) -> Refusal | None:
    """Return why a node did not take the job, and what to type next; None where it did."""
    if answer.output is None:
        return Refusal(why=answer.problem or "no answer", hint="clusterkit preflight says more")
    said = _last_document(answer.output.stdout)
    if answer.output.exit_code == 0 and {"pid", "free"}.intersection(said):
        return None
    if "refused" in said:
        busy = said.get("busy") is True
        return Refusal(why=str(said["refused"]), hint=said.get("hint"), busy=busy)
    python, errors = layout.python, answer.output.stderr.strip()
    last = errors.splitlines()[-1] if errors else f"exit code {answer.output.exit_code}"
    if _NO_MODULE in errors:
        return Refusal(
            why=last.removeprefix(f"{python}: "),
            hint=f"install clusterkit there, for {python}" if layout.shared else _prepare(layout),
        )
    if answer.output.exit_code in _CANNOT_RUN:
        return Refusal(
            why=f"{python} cannot be run there",
            hint="install clusterkit in a folder that all nodes share, at the same path"
            if layout.shared
            else _prepare(layout),
        )
    return Refusal(why=last)


def _prepare(layout: SshLayout) -> str:
    return f"clusterkit nodes prepare --cluster {layout.cluster.name}"


def _last_document(text: str) -> Mapping[str, Any]:
    lines: Sequence[str] = text.strip().splitlines()
    try:
        document = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
