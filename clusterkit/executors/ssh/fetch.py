"""Bring what nodes that do not share the run folder have written into that of the client.

So everything that reads a run folder (`status`, `logs -f`, `wait`) reads it as if it were shared.
A node's last word (`ends/RANK.json`) is written here last: with it everything else of the node is
there, its whole log and its results. What was brought is kept in `mirror.json`, so that only what
is new is asked for, and a connection that breaks costs nothing.

Each node knows best of itself. That another one has gone, only the others can say; and one that
lies would say it of a healthy node. So what nodes report of others is kept under their own names,
and a result of somebody else counts only where that node has none to show that contradicts it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from clusterkit.core import files
from clusterkit.core.errors import RemoteError
from clusterkit.core.model import NodeResult
from clusterkit.core.records import record_of
from clusterkit.core.timing import scaled
from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh.inbox import reported_failure, reported_loss
from clusterkit.executors.ssh.layout import SshLayout
from clusterkit.executors.ssh.node_files import NodeFiles, Progress, StillComing
from clusterkit.transport.ssh.config import SshOptions
from clusterkit.transport.ssh.session import on_nodes

MEMO = "mirror.json"
EVERY_S = scaled(1.0, 0.4)
_AGAIN_S = scaled(10.0, 3.0)
"""A node that did not answer is asked again after so long, unless the state of the job asks."""
_TURN_S = 5.0
"""How long to wait for another client that is at it."""
_WRITERS = "writers"
"""In the memo: which node the end of each log came from."""


def fetch(
    run: RunFolder,
    layout: SshLayout,
    *,
    again: bool = False,
    gone: Collection[str] = (),
    brief: bool = False,
) -> dict[str, RemoteError] | None:
    """Bring what is new; return the nodes that could not be asked, and why.

    None where another client is bringing it for a longer time. Unless `again`, nobody is asked who
    has just been asked. The node agents of the nodes `gone` are known to have ended without a word.
    With `brief`, no more than who keeps the nodes and how they ended, within seconds.

    Raises:
        UserError: it cannot be written here, or ssh's configuration not be read.
    """
    if layout.shared or run.queued.exists():
        return {}
    if not again and _is_fresh(run):
        nodes = _nodes(run, layout, _Memo(run))
        return {name: n.last_error for name, n in nodes.items() if n.progress.failed_at is not None}
    with _turn(run) as mine:
        if not mine:
            return None
        memo = _Memo(run)
        nodes = _nodes(run, layout, memo)
        due = [name for name, node in nodes.items() if _is_due(node, again=again)]
        try:
            answers = on_nodes(
                SshOptions.of(layout.cluster),
                due,
                lambda session: nodes[session.node].bring(
                    session, gone=session.node in gone, brief=brief
                ),
            )
        finally:
            memo.write()
        errors = {name: e for name, e in answers.items() if isinstance(e, RemoteError)}
        for name in due:
            nodes[name].note(errors.get(name))
        for name, node in nodes.items():
            if name not in due and not node.is_over:
                errors[name] = node.last_error
        memo.write()
        silent = {name for name, error in errors.items() if not isinstance(error, StillComing)}
        settle(run, layout, silent.union(gone))
        if all(node.is_over or name in silent or name in gone for name, node in nodes.items()):
            decide_first_failure(run, layout)
        return errors


def _nodes(run: RunFolder, layout: SshLayout, memo: _Memo) -> dict[str, NodeFiles]:
    return {
        node: NodeFiles(run, layout, rank, memo.of(rank, node), memo.writers)
        for rank, node in enumerate(layout.names[: layout.tasks])
    }


def _is_fresh(run: RunFolder) -> bool:
    try:
        return 0 <= time.time() - (run.path / MEMO).stat().st_mtime < EVERY_S
    except OSError:
        return False


def _is_due(node: NodeFiles, *, again: bool) -> bool:
    failed_at = node.progress.failed_at
    failed_recently = failed_at is not None and 0 <= time.time() - failed_at < _AGAIN_S
    return not node.is_over and (again or not failed_recently)


@contextmanager
def _turn(run: RunFolder) -> Iterator[bool]:
    deadline = time.monotonic() + _TURN_S
    while True:
        with files.locked(run.path / "mirror.lock") as mine:
            if mine or time.monotonic() > deadline:
                yield mine
                return
        time.sleep(0.1)


class _Memo:
    """What stands in `mirror.json`."""

    def __init__(self, run: RunFolder) -> None:
        self._path = run.path / MEMO
        self._document: dict[str, Any] = files.read_json(self._path) or {}
        found = self._document.get(_WRITERS)
        known = found if isinstance(found, Mapping) else {}
        self.writers = {str(log): str(node) for log, node in known.items()}
        self._progress: dict[str, Progress] = {}

    def of(self, rank: int, node: str) -> Progress:
        """Return what was brought of a node under this rank; nothing where nobody can tell."""
        key = f"{rank} {node}"
        found = record_of(Progress, self._document.get(key)) or Progress()
        self._progress[key] = found
        return found

    def write(self) -> None:
        document = {**self._document, **self._progress, _WRITERS: self.writers}
        files.write_json(self._path, document, mode=files.PRIVATE)


def settle(run: RunFolder, layout: SshLayout, out_of_reach: Collection[str]) -> None:
    """Write down the nodes that have gone, as the others tell.

    Of those that can be asked (all but the nodes `out_of_reach`) only where they have ended, and
    not by their own doing.
    """
    attempt, n_nodes = layout.attempt, len(layout.names)
    for rank, node in enumerate(layout.names):
        losses = [
            result
            for teller in range(n_nodes)
            if teller != rank and (result := _result_in(run, reported_loss(teller, rank, attempt)))
        ]
        own = node_results.read_result(run, rank, attempt)
        if not losses or (own is not None and own.lost is not None):
            continue
        if node in out_of_reach if own is None else _was_ended(own):
            node_results.replace_result(run, losses[0], attempt=attempt, n_nodes=n_nodes)


def decide_first_failure(run: RunFolder, layout: SshLayout) -> None:
    """Choose the first failure of the attempt from the reports of the nodes.

    The first node heard of all. But a rank that was killed breaks those on other nodes, whose
    nodes may have been heard before its own.
    """
    attempt, n_nodes = layout.attempt, len(layout.names)
    reports = ((rank, _result_in(run, reported_failure(rank, attempt))) for rank in range(n_nodes))
    results = [
        believed
        for teller, failure in reports
        if failure is not None and (believed := _believed(run, layout, teller, failure)) is not None
    ]
    killed = [r for r in results if r.lost is None and r.unfit is None and r.exit_code in _KILLED]
    if results:
        first = min(killed, key=lambda result: result.ended_at, default=results[0])
        node_results.note_failure(run, first, attempt=attempt, n_nodes=n_nodes)


def _believed(
    run: RunFolder, layout: SshLayout, teller: int, failure: NodeResult
) -> NodeResult | None:
    """Return what of a node's word on the first failure counts: of another, its own result."""
    rank = failure.node_rank
    if rank >= len(layout.names) or failure.node != layout.names[rank]:
        return None
    if rank == teller:
        return failure
    if failure.unfit is not None:  # which a node finds out itself
        return None
    own = node_results.read_result(run, rank, layout.attempt)
    if own is None or own.lost is not None or (failure.lost is not None and _was_ended(own)):
        return replace(failure, fault=None)
    return own if own.exit_code and own.reason is None else None


def _was_ended(own: NodeResult) -> bool:
    """Tell whether a node has ended, and says that this was not its own doing."""
    return own.exit_code != 0 and own.reason is not None


def _result_in(run: RunFolder, name: PurePosixPath) -> NodeResult | None:
    return node_results.result_of(files.read_json(run.path / name))


_KILLED = frozenset({128 + 4, 128 + 7, 128 + 8, 128 + 9, 128 + 11})
"""Exit codes of what was killed (SIGKILL), or broke by itself (SIGILL, SIGBUS, SIGFPE, SIGSEGV);
SIGABRT is how NCCL ends what has lost its peers."""
