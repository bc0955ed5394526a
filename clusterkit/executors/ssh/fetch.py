"""Bring what nodes that do not share the run folder have written into that of the client.

So everything that reads a run folder (`status`, `logs -f`, `wait`) reads it as if it were shared.
A node's last word (`ends/RANK.json`) is written here last: with it everything else of the node is
there, its whole log and its results. What was brought is kept in `mirror.json`, so that only what
is new is asked for, and a connection that breaks costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from clusterkit.core import files
from clusterkit.core.errors import RemoteError
from clusterkit.core.records import record_of
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh.claims import decide_first_failure, settle
from clusterkit.executors.ssh.layout import SshLayout
from clusterkit.executors.ssh.node_files import NodeFiles, Progress, StillComing
from clusterkit.transport.ssh.config import SshOptions
from clusterkit.transport.ssh.session import on_nodes

MEMO = "mirror.json"
EVERY_S = 1.0
_AGAIN_S = 10.0
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
    has just been asked. The keepers of the nodes `gone` are known to have ended without a word.
    With `brief`, no more than who keeps the nodes and how they ended, within seconds.

    Raises:
        UserError: it cannot be written here, or ssh's configuration not be read.
    """
    if layout.shared or run.held.exists():
        return {}
    if not again and _is_fresh(run):
        nodes = _nodes(run, layout, _Memo(run))
        return {name: n.last_error for name, n in nodes.items() if n.progress.failed_at is not None}
    with _turn(run) as mine:
        if not mine:
            return None
        memo = _Memo(run)
        nodes = _nodes(run, layout, memo)
        asked = [name for name, node in nodes.items() if _is_due(node, again=again)]
        try:
            answers = on_nodes(
                SshOptions.of(layout.cluster),
                asked,
                lambda session: nodes[session.node].bring(
                    session, gone=session.node in gone, brief=brief
                ),
            )
        finally:
            memo.write()
        errors = {name: e for name, e in answers.items() if isinstance(e, RemoteError)}
        for name in asked:
            nodes[name].note(errors.get(name))
        for name, node in nodes.items():
            if name not in asked and not node.is_over:
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
    patience = failed_at is not None and 0 <= time.time() - failed_at < _AGAIN_S
    return not node.is_over and (again or not patience)


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
