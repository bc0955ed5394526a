"""Start the keepers of a job on all of its nodes at once; where one cannot, end the others."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from clusterkit import files
from clusterkit.errors import RemoteError, UserError
from clusterkit.executors.base import RefusalError
from clusterkit.executors.ssh_layout import SshLayout, write_layout
from clusterkit.executors.ssh_nodes import NodeAnswer, ask_nodes
from clusterkit.executors.ssh_runs import job_id_of, look_for, read_keepers
from clusterkit.model import ClusterSpec, LaunchPlan
from clusterkit.probes.compound import PROBES_VARIABLE
from clusterkit.runfolder import RunFolder
from clusterkit.shell import quote

_START_S = 60.0
"""Python from a busy shared folder, and the slots."""
_END_S = 10.0
_NO_MODULE = "No module named"
_NO_SUCH = ("not found", "No such file")
_STAYS = f"unset {PROBES_VARIABLE}; "
"""What it starts is no probe, to be ended with the connection."""
_MODULE = "clusterkit.executors.ssh_keeper"


class NodesBusy(RefusalError):  # noqa: N818 - a state of nodes, not a mistake of anyone
    """Nodes did not take the job, all of them because others hold their slots."""

    def __init__(self, message: str, nodes: frozenset[str], *, hint: str | None) -> None:
        """Name the nodes."""
        super().__init__(message, hint=hint)
        self.nodes = nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    why: str
    hint: str | None = None
    busy: bool = False


def layout_of(plan: LaunchPlan, run: RunFolder) -> SshLayout:
    """Return what the nodes of a plan have to know.

    Raises:
        UserError: the plan asks for what this release does not do over ssh.
    """
    if not plan.cluster.shared_filesystem:
        raise UserError(
            f"the machines of cluster {plan.cluster.name} have to share a file system, so far",
            hint="remove `shared_filesystem: false` where there is one; docs/how-to/ssh.md",
        )
    if plan.requeue:
        raise UserError(
            "--requeue counts on Slurm only, so far",
            hint="leave it out, and submit again with your script's own checkpoint",
        )
    names = plan.node_names
    known = {host.name: host.slots for host in plan.cluster.hosts}
    return SshLayout(
        job_id=job_id_of(run),
        names=names,
        slots=plan.slots[: len(names)],
        offered=tuple(known.get(name) or plan.cluster.gpus_per_node for name in names),
        tasks=1 if plan.command.once else len(names),
        ports=plan.cluster.port_range,
        token=secrets.token_hex(16),
        time_limit_s=plan.time_limit_s,
        command=(python_of(plan.cluster), "-u", "-m", "clusterkit.worker", str(run.path)),
        logs=str(run.submitit),
        cluster=plan.cluster,
    )


def python_of(cluster: ClusterSpec) -> str:
    """Return the interpreter that runs clusterkit on the nodes: this one, where they share it."""
    return sys.executable if cluster.shared_filesystem else cluster.python or "python3"


def start(run: RunFolder, layout: SshLayout) -> None:
    """Start a keeper on each node, all at once; where one does not start, none is left.

    Raises:
        RefusalError: a node did not take the job; each of them, with the reason.
        UserError: the run folder cannot be written, or ssh's configuration not be read.
    """
    write_layout(run, layout)
    for folder in (run.keepers, run.ends):
        files.create_folder(folder)
    python = layout.command[0]
    snippets = {
        name: f"{_STAYS}exec {quote(python)} -m {_MODULE} {quote(str(run.path))} {rank}"
        for rank, name in enumerate(layout.names[: layout.tasks])
    }
    answers = ask_nodes(layout.cluster, snippets, timeout_s=_START_S)
    refused = {node: _refusal(answer, python) for node, answer in answers.items()}
    refusals = {node: refusal for node, refusal in refused.items() if refusal is not None}
    if refusals:
        files.create_text(run.cancelled, "")
        with suppress(RemoteError):  # who does not answer now finds the job cancelled
            end(run, layout)
        raise _error(refusals)


def _error(refusals: Mapping[str, _Refusal]) -> RefusalError:
    message = "\n".join(f"{node}: {refusal.why}" for node, refusal in refusals.items())
    hints = dict.fromkeys(refusal.hint for refusal in refusals.values() if refusal.hint)
    hint = "\n      ".join(hints) or None
    if all(refusal.busy for refusal in refusals.values()):
        return NodesBusy(message, frozenset(refusals), hint=hint)
    return RefusalError(message, hint=hint)


def end(run: RunFolder, layout: SshLayout) -> None:
    """Tell every keeper that lives to end its node.

    Raises:
        RemoteError: a node that may have one does not answer; all others have been told.
    """
    keepers = {keeper.node: keeper for keeper in read_keepers(run) if keeper.ended_as is None}
    lives = look_for(layout.cluster, keepers.values())
    alive = {node: keeper for node, keeper in keepers.items() if lives[keeper] == "alive"}
    snippets = {node: f"kill -TERM {keeper.pid}" for node, keeper in alive.items()}
    if snippets:
        ask_nodes(layout.cluster, snippets, timeout_s=_END_S)
    silent = [node for node, keeper in keepers.items() if lives[keeper] == "silent"]
    if silent:
        raise RemoteError(
            f"no answer from {', '.join(silent)}",
            hint="a node that the others cannot reach ends by itself; else cancel again later",
        )


def _refusal(answer: NodeAnswer, python: str) -> _Refusal | None:
    """Return why a node did not take the job, and what to type next; None where it did."""
    if answer.output is None:
        return _Refusal(why=answer.problem or "no answer", hint="clusterkit preflight says more")
    said = _last_document(answer.output.stdout)
    if answer.output.exit_code == 0 and "pid" in said:
        return None
    if "refused" in said:
        busy = said.get("busy") is True
        return _Refusal(why=str(said["refused"]), hint=said.get("hint"), busy=busy)
    errors = answer.output.stderr.strip()
    last = errors.splitlines()[-1] if errors else f"exit code {answer.output.exit_code}"
    if _NO_MODULE in errors:
        return _Refusal(
            why=last.removeprefix(f"{python}: "), hint=f"install clusterkit there, for {python}"
        )
    if any(word in errors for word in _NO_SUCH):
        return _Refusal(
            why=f"{python} is not there", hint="set `python:` of the cluster to one that is"
        )
    return _Refusal(why=last)


def _last_document(text: str) -> Mapping[str, Any]:
    lines: Sequence[str] = text.strip().splitlines()
    try:
        document = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
