"""Start the keepers of a job on all of its nodes at once; where one cannot, end the others."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit import files, node_results
from clusterkit.errors import RemoteError, UserError
from clusterkit.executors import ssh_copy, ssh_mirror
from clusterkit.executors.base import RefusalError
from clusterkit.executors.ssh_layout import CHECK, SshLayout, offered_by, write_layout
from clusterkit.executors.ssh_nodes import NodeAnswer, ask_nodes
from clusterkit.executors.ssh_runs import job_id_of, order_to_end, read_keepers
from clusterkit.model import ClusterSpec, LaunchPlan
from clusterkit.probes.compound import PROBES_VARIABLE
from clusterkit.runfolder import RunFolder
from clusterkit.shell import quote_path

_START_S = 60.0
"""Python from a busy shared folder, and the slots."""
_END_S = 10.0
_NO_MODULE = "No module named"
_CANNOT_RUN = frozenset({126, 127})
"""Exit codes of sh for a program that is not there, or cannot be started."""
_STAYS = f"unset {PROBES_VARIABLE}; "
"""What it starts is no probe, to be ended with the connection."""
_MODULE = "clusterkit.executors.ssh_keeper"


class NodesRefuse(RefusalError):  # noqa: N818 - a state of nodes, not a mistake of anyone
    """Nodes did not take the job."""

    def __init__(self, message: str, nodes: frozenset[str], *, hint: str | None) -> None:
        """Name the nodes."""
        super().__init__(message, hint=hint)
        self.nodes = nodes


class NodesBusy(NodesRefuse):
    """Nodes did not take the job, all of them because others hold their slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    why: str
    hint: str | None = None
    busy: bool = False


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
        offered=offered_by(plan.cluster, names),
        tasks=1 if plan.command.once else len(names),
        least=plan.nodes if plan.max_nodes is not None else None,
        ports=plan.cluster.port_range,
        token=secrets.token_hex(16),
        time_limit_s=plan.time_limit_s,
        command=(sys.executable, "-u", "-m", "clusterkit.worker", str(run.path)),
        logs=str(run.submitit),
        cluster=plan.cluster,
        sync=plan.sync,
        needs=_needs(plan),
    )
    if later or plan.spares:
        ssh_copy.keep_source(run, layout)
    return ssh_copy.with_digest(layout, run)


def _needs(plan: LaunchPlan) -> tuple[str, ...]:
    """Return what a job needs of its nodes that nobody brings them."""
    if plan.cluster.shared_filesystem or plan.sync is not None or plan.container is not None:
        return ()
    return (plan.workdir, str(Path(plan.workdir) / plan.script))


def require_shared(cluster: ClusterSpec) -> None:
    """Refuse a cluster whose machines share no file system.

    Raises:
        UserError: its configuration says so.
    """
    if not cluster.shared_filesystem:
        raise UserError(
            f"the machines of cluster {cluster.name} share no file system, and functions need one",
            hint="submit a script instead: clusterkit submit --sync DIR; docs/how-to/ssh.md",
        )


def start(run: RunFolder, layout: SshLayout, *, handing_over: Callable[[], None]) -> None:
    """Start a keeper on each node, all at once; where one does not start, none is left.

    `handing_over` is called at the last moment at which nothing can have been started.

    Raises:
        NodesRefuse: a node did not take the job; each of them, with the reason.
        UserError: the run folder cannot be written, or ssh's configuration not be read.
    """
    write_layout(run, layout)
    for folder in (run.keepers, run.ends):
        files.create_folder(folder)
    _bring(run, layout, whole=True)
    handing_over()
    try:
        _tell_keepers(run, layout)
    except NodesRefuse as error:
        # Who did start, or still does, finds the job cancelled, or this attempt failed.
        if layout.attempt:
            _note_refusal(run, layout, error)
        else:
            files.create_text(run.cancelled, "")
        with suppress(RemoteError):
            end(run, layout)
        raise
    with suppress(RemoteError):  # whoever looks next asks again
        ssh_mirror.fetch(run, layout)


def _bring(run: RunFolder, layout: SshLayout, *, whole: bool) -> None:
    errors = ssh_copy.send_files(run, layout, whole=whole)
    if errors:
        raise _error({n: _Refusal(why=e.message, hint=e.hint) for n, e in errors.items()})


def check(run: RunFolder, layout: SshLayout) -> None:
    """Ask each node whether it would take the job now; nothing is started.

    Raises:
        NodesRefuse: a node would not; each of them, with the reason.
        UserError: ssh's configuration cannot be read.
    """
    _bring(run, layout, whole=False)
    _tell_keepers(run, layout, CHECK)


def _tell_keepers(run: RunFolder, layout: SshLayout, *words: str) -> None:
    program = f"{quote_path(layout.python)} -m {_MODULE} {quote_path(layout.folder(run))}"
    more = "".join(f" {word}" for word in words)
    snippets = {
        name: f"{_STAYS}exec {program} {rank}{more}"
        for rank, name in enumerate(layout.names[: layout.tasks])
    }
    answers = ask_nodes(layout.cluster, snippets, timeout_s=_START_S)
    refused = {node: _refusal(answer, layout) for node, answer in answers.items()}
    refusals = {node: refusal for node, refusal in refused.items() if refusal is not None}
    if refusals:
        raise _error(refusals)


def _note_refusal(run: RunFolder, layout: SshLayout, error: NodesRefuse) -> None:
    node = min(error.nodes, key=layout.names.index)
    failure = node_results.lost(layout.names.index(node), node, "did not take the job")
    node_results.note_failure(run, failure, attempt=layout.attempt, of=len(layout.names))


def _error(refusals: Mapping[str, _Refusal]) -> NodesRefuse:
    message = "\n".join(f"{node}: {refusal.why}" for node, refusal in refusals.items())
    hints = dict.fromkeys(refusal.hint for refusal in refusals.values() if refusal.hint)
    hint = "\n      ".join(hints) or None
    busy = all(refusal.busy for refusal in refusals.values())
    kind = NodesBusy if busy else NodesRefuse
    return kind(message, frozenset(refusals), hint=hint)


def end(run: RunFolder, layout: SshLayout) -> None:
    """Tell every keeper that lives to end its node.

    Raises:
        RemoteError: a node that may have one does not answer; all others have been told.
    """
    with suppress(RemoteError):
        ssh_mirror.fetch(run, layout)
    keepers = {keeper.node: keeper for keeper in read_keepers(run) if keeper.ended_as is None}
    snippets = {node: order_to_end(keeper) for node, keeper in keepers.items()}
    if run.cancelled.exists():
        # Written there as well, because a node may not see for a while what was written here.
        folder = quote_path(layout.folder(run))
        note = f"if [ -d {folder} ]; then : >>{folder}/{run.cancelled.name}; fi; "
        everywhere = not layout.shared and run.keepers.is_dir()
        told = layout.names[: layout.tasks] if everywhere else snippets
        snippets = {node: note + snippets.get(node, ":") for node in told}
    answers = ask_nodes(layout.cluster, snippets, timeout_s=_END_S) if snippets else {}
    silent = [node for node, answer in answers.items() if answer.output is None]
    if silent:
        raise RemoteError(
            f"no answer from {', '.join(silent)}",
            hint="a node that the others cannot reach ends by itself; else cancel again later",
        )


def _refusal(answer: NodeAnswer, layout: SshLayout) -> _Refusal | None:
    """Return why a node did not take the job, and what to type next; None where it did."""
    if answer.output is None:
        return _Refusal(why=answer.problem or "no answer", hint="clusterkit preflight says more")
    said = _last_document(answer.output.stdout)
    if answer.output.exit_code == 0 and {"pid", "free"}.intersection(said):
        return None
    if "refused" in said:
        busy = said.get("busy") is True
        return _Refusal(why=str(said["refused"]), hint=said.get("hint"), busy=busy)
    python, errors = layout.python, answer.output.stderr.strip()
    last = errors.splitlines()[-1] if errors else f"exit code {answer.output.exit_code}"
    if _NO_MODULE in errors:
        return _Refusal(
            why=last.removeprefix(f"{python}: "),
            hint=f"install clusterkit there, for {python}" if layout.shared else _prepare(layout),
        )
    if answer.output.exit_code in _CANNOT_RUN:
        return _Refusal(
            why=f"{python} cannot be run there",
            hint="install clusterkit in a folder that all nodes share, at the same path"
            if layout.shared
            else _prepare(layout),
        )
    return _Refusal(why=last)


def _prepare(layout: SshLayout) -> str:
    return f"clusterkit nodes prepare --cluster {layout.cluster.name}"


def _last_document(text: str) -> Mapping[str, Any]:
    lines: Sequence[str] = text.strip().splitlines()
    try:
        document = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
