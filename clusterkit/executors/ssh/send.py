"""Bring the files of a job to nodes that do not share its run folder.

Each gets a run folder of its own with what the client wrote, and with `--sync` a copy of a folder.
That copy is the job's own: what is sent for a later job does not change the code of this one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Lock

from clusterkit.core import files
from clusterkit.core.errors import RemoteError
from clusterkit.core.model import SyncPlan
from clusterkit.core.text import size_in_words
from clusterkit.executors.base import Show, untold
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh.layout import COPY, SshLayout
from clusterkit.transport.ssh.config import SshOptions
from clusterkit.transport.ssh.session import Session, on_nodes
from clusterkit.transport.sync.deliver import PRIVATE, Delivered, Place, deliver
from clusterkit.transport.sync.helper import Helper, NoPython
from clusterkit.transport.sync.manifest import Manifest, manifest_of, read_manifest

SYNCED = "~/.clusterkit/sync"
"""Where nodes keep what was sent last of each folder, to compare the next with."""
KEPT = "source"
"""In the run folder of a job that nodes may get at a later time: the folder as it was."""
SENT = "sync.json"
"""In the run folder: how much of the folder was sent to each node."""
_ASK_S, _WHOLE_S = 60.0, 3600.0
"""For the job's own few files, and for all: 500 MiB come over 1.2 Mbit/s in an hour."""
_NOT_THEIRS = (SENT, "state.json", "mirror.json", "left-out", "told-slurm.json")
_CLIENTS = ".client"
"""In the run folder of the client alone: a node that sees it there shares that folder."""
_OF_ATTEMPTS = ("timeout-", "again-")


def with_source(layout: SshLayout, run: RunFolder, *, keep: bool) -> SshLayout:
    """Return the layout with what tells the contents of its folder from others.

    With `keep`, the folder is copied into the run folder, for nodes that get it at a later time.

    Raises:
        UserError: it cannot be read, is larger than allowed, or cannot be written here.
    """
    if layout.sync is None:
        return layout
    manifest = _Source(layout, run).manifest
    if keep:
        for entry in manifest.entries:
            files.copy(manifest.folder / entry.path, run.path / KEPT / entry.path)
        manifest = _Source(layout, run).manifest  # of the copy: the folder may change meanwhile
    return dataclasses.replace(layout, sync_digest=manifest.digest)


def send_files(
    run: RunFolder, layout: SshLayout, *, whole: bool, show: Show = untold
) -> dict[str, RemoteError]:
    """Bring the files to all nodes of the layout; return those that do not have them, and why.

    `show` is told how much of the folder has been sent.
    Unless `whole`, without the folder of `--sync`: enough to ask whether a node takes the job.

    Raises:
        UserError: a file cannot be read, or changes while it is sent.
    """
    if layout.shared:
        return {}
    source = _Source(layout, run)
    own = _own_files(run)
    files.touch(run.path / _CLIENTS)
    amounts: dict[str, tuple[int, int]] = {}
    turn = Lock()  # else a smaller sum could be shown after a larger one

    def on_sent(node: str, size: int, wanted: int) -> None:
        with turn:
            amounts[node] = size, wanted
            done, of = map(sum, zip(*amounts.values(), strict=True))
            show(f"{size_in_words(done)} of {size_in_words(of)} sent to nodes")

    def work(session: Session) -> Delivered | None:
        limited = session.within(_WHOLE_S if whole else _ASK_S)
        told = partial(on_sent, session.node)
        return _send(limited, run, layout, own, source if whole else None, told)

    names = layout.names[: layout.tasks]
    answers = on_nodes(SshOptions.of(layout.cluster), names, work)
    sent = {node: answer for node, answer in answers.items() if isinstance(answer, Delivered)}
    if sent:
        known = files.read_json(run.path / SENT) or {}
        files.write_json(run.path / SENT, {**known, **sent})
    return {node: error for node, error in answers.items() if isinstance(error, RemoteError)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Missing:
    """which of the paths that it needs are missing."""

    missing: tuple[str, ...]


class _Source:
    """The folder of `--sync`, read once, and only where a node needs it."""

    def __init__(self, layout: SshLayout, run: RunFolder) -> None:
        self.layout = layout
        self.run = run
        self._lock = Lock()

    @cached_property
    def _read(self) -> Manifest:
        sync = self.layout.sync
        if sync is None:
            raise AssertionError("a job without --sync has no folder to read")
        kept = self.run.path / KEPT
        if kept.is_dir():
            return read_manifest(kept, limit_mib=sync.limit_mib, like_git=False)
        runs = self.run.path.parent.resolve()
        return read_manifest(Path(sync.folder), limit_mib=sync.limit_mib, leave_out=[runs])

    @property
    def manifest(self) -> Manifest:
        with self._lock:
            return self._read


def _own_files(run: RunFolder) -> Manifest:
    """Return what the client has written of the job, for the nodes to read."""
    sources = {
        path.name: path
        for path in sorted(run.path.iterdir())
        if path.is_file()
        and path.name not in _NOT_THEIRS
        and not path.name.startswith((".", *_OF_ATTEMPTS))
        and path.suffix != ".lock"
    }
    return manifest_of(sources)


def _send(
    session: Session,
    run: RunFolder,
    layout: SshLayout,
    own: Manifest,
    source: _Source | None,
    on_sent: Callable[[int, int], None],
) -> Delivered | None:
    """Bring the files to one node; return what of the folder was sent, where it had no copy."""
    folder = layout.folder(run)
    hint = f"clusterkit nodes prepare --cluster {layout.cluster.name}"
    try:
        helper = Helper(session, layout.python)
    except NoPython as error:
        raise RemoteError(error.message, node=session.node, hint=hint) from error
    copy = f"{folder}/{COPY}"
    ours = f"{folder}/{_CLIENTS}"
    seen = helper.ask_for(_Missing, "look", place=folder, need=[copy, ours, *layout.needs])
    if ours not in seen.missing:
        raise RemoteError(
            "it shares the run folder with this machine, and `shared_filesystem: false` denies it",
            node=session.node,
            hint=f"`shared_filesystem: true` for cluster {layout.cluster.name}; where this machine "
            "is merely one of its hosts, another `run_dir`",
        )
    lacking = [path for path in layout.needs if path in seen.missing]
    if lacking:
        raise RemoteError(
            f"there is no {lacking[0]} there",
            node=session.node,
            hint="send your folder with the job: --sync DIR",
        )
    place = Place(
        folder=folder,
        only=False,
        folders=tuple(
            path.name
            for path in (run.submitit, run.logs, run.nodes, run.failures, run.agents, run.ends)
        ),
        folder_mode=PRIVATE,
    )
    deliver(helper, own, place)
    if source is not None and layout.sync is not None and copy in seen.missing:
        if source.manifest.digest != layout.sync_digest:
            # It would run other code than the nodes beside it.
            raise RemoteError(
                f"it has no copy of {layout.sync.folder}, which has changed since the job was "
                "submitted",
                node=session.node,
                hint="submit it again, or leave the node out",
            )
        place = Place(folder=_synced(layout.sync), snapshot=copy, folder_mode=PRIVATE)
        return deliver(helper, source.manifest, place, on_sent=on_sent)
    return None


def _synced(sync: SyncPlan) -> str:
    """Return where a node keeps what was sent of a folder, for each folder of each client."""
    whose = f"{socket.gethostname()}:{os.getuid()}:{sync.folder}"
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(sync.folder).name) or "folder"
    return f"{SYNCED}/{name}-{hashlib.sha256(whose.encode()).hexdigest()[:12]}"
