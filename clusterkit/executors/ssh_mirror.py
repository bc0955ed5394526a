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
from pathlib import PurePosixPath
from typing import Any

from clusterkit import files, node_results
from clusterkit.errors import RemoteError
from clusterkit.executors.ssh_layout import SshLayout
from clusterkit.model import SYNC_LIMIT_MIB
from clusterkit.runfolder import RunFolder
from clusterkit.sync.helper import Helper
from clusterkit.transport.ssh_config import SshOptions
from clusterkit.transport.ssh_session import Session, on_nodes

MEMO = "mirror.json"
RESULTS = "results"
EVERY_S = 1.0
_AGAIN_S = 10.0
"""A node that did not answer is asked again after so long, unless the state of the job asks."""
_TURN_S = 5.0
"""How long to wait for another client that is at it."""
_MIB = 1 << 20
_SMALL_MOST = _MIB
_LOG_MOST = 64 * _MIB
"""Of a job that runs: the rest comes the next time."""
_FOLDERS = ("keepers", "ends", "nodes", "failures", "submitit")
_PART = ".ck-part"
_WRITERS = "writers"
"""In the memo: which node the end of each log came from."""
_TOLD = "told-"
"""Before the names of first failures as single nodes have them."""


def fetch(
    run: RunFolder, layout: SshLayout, *, again: bool = False, gone: Collection[str] = ()
) -> dict[str, RemoteError] | None:
    """Bring what is new; return the nodes that could not be asked, and why.

    None where another client is bringing it for a longer time. Unless `again`, nobody is asked who
    has just been asked. The keepers of the nodes `gone` are known to have ended without a word.

    Raises:
        UserError: it cannot be written here, or ssh's configuration not be read.
    """
    if layout.shared or run.held.exists() or (not again and _is_fresh(run)):
        return {}
    with _turn(run) as mine:
        if not mine:
            return None
        memo: dict[str, Any] = files.read_json(run.path / MEMO) or {}
        writers: dict[str, str] = memo.setdefault(_WRITERS, {})
        nodes = {
            node: _Node(run, layout, rank, memo.setdefault(f"{rank} {node}", {}), writers)
            for rank, node in enumerate(layout.names[: layout.tasks])
        }
        asked = [name for name, node in nodes.items() if node.is_due(again=again)]
        try:
            answers = on_nodes(
                SshOptions.of(layout.cluster),
                asked,
                lambda session: nodes[session.node].bring(session, gone=session.node in gone),
            )
        finally:
            files.write_json(run.path / MEMO, memo, mode=files.PRIVATE)
        errors = {name: e for name, e in answers.items() if isinstance(e, RemoteError)}
        for name in asked:
            nodes[name].memo["failed_at"] = time.time() if name in errors else None
        for name, node in nodes.items():
            if name not in asked and not node.is_over:
                errors[name] = RemoteError("no answer a moment ago", node=name)
        files.write_json(run.path / MEMO, memo, mode=files.PRIVATE)
        if all(node.is_over or name in errors or name in gone for name, node in nodes.items()):
            _decide_first_failure(run, layout)
        return errors


def _is_fresh(run: RunFolder) -> bool:
    try:
        return 0 <= time.time() - (run.path / MEMO).stat().st_mtime < EVERY_S
    except OSError:
        return False


@contextmanager
def _turn(run: RunFolder) -> Iterator[bool]:
    deadline = time.monotonic() + _TURN_S
    while True:
        with files.locked(run.path / "mirror.lock") as mine:
            if mine or time.monotonic() > deadline:
                yield mine
                return
        time.sleep(0.1)


class _Node:
    """One node of the run, and what has been brought from it."""

    def __init__(
        self,
        run: RunFolder,
        layout: SshLayout,
        rank: int,
        memo: dict[str, Any],
        writers: dict[str, str],
    ) -> None:
        self.run = run
        self.layout = layout
        self.rank = rank
        self.memo = memo
        self.writers = writers
        self._end: bytes | None = None

    @property
    def is_over(self) -> bool:
        """Whether everything of this attempt is here."""
        return self.memo.get("over") == self.layout.attempt

    def is_due(self, *, again: bool) -> bool:
        failed_at = self.memo.get("failed_at")
        patience = failed_at is not None and 0 <= time.time() - failed_at < _AGAIN_S
        return not self.is_over and (again or not patience)

    def bring(self, session: Session, *, gone: bool = False) -> None:
        """Bring what is new; of a keeper that has `gone` without a word, the results as well.

        Raises:
            RemoteError: the node could not say it all.
            UserError: it cannot be written here.
        """
        helper = Helper(session, self.layout.python)
        self._read(helper, trees=(), log_most=_LOG_MOST)
        if self._end is not None or gone:
            self._read(helper, trees=(RESULTS,), log_most=None)
        if self._end is not None:
            self._write(self.run.end(self.rank).relative_to(self.run.path).as_posix(), self._end)
            self.memo["over"] = self.layout.attempt

    def _read(self, helper: Helper, *, trees: tuple[str, ...], log_most: int | None) -> None:
        attempt = self.layout.attempt
        small = (*_FOLDERS, f"timeout-{attempt}", f"again-{attempt}.json")
        log = f"logs/{self.run.log(self.rank).name}"
        limit_mib = self.layout.sync.limit_mib if self.layout.sync else SYNC_LIMIT_MIB
        helper.tell(
            "fetch",
            folder=self.layout.folder(self.run),
            have=self._have,
            small=small,
            small_most=_SMALL_MOST,
            logs={log: self.memo.get("log_offset", 0)},
            logs_most=log_most,
            trees=trees,
            tree_most=limit_mib * _MIB,
        )
        while "done" not in (answer := helper.answer()):
            data = helper.take(int(answer.get("bytes", 0)))
            if "small" in answer:
                self._take_small(_safe(answer["small"], small), data)
                self._have[answer["small"]] = answer["sign"]
            elif "log" in answer:
                self._take_log(int(answer["offset"]), data)
            elif "file" in answer:
                self._take_result(answer, data)
            else:
                self._note_too_large(answer)

    @property
    def _have(self) -> dict[str, Any]:
        have: dict[str, Any] = self.memo.setdefault("have", {})
        return have

    def _take_small(self, name: str, data: bytes) -> None:
        folder, _, file = name.partition("/")
        if folder == "ends":
            if _attempt_of(data) == self.layout.attempt:
                self._end = data
        elif folder == "failures":
            if file.partition(".")[0].isdigit():
                self._write(f"failures/{_TOLD}{self.rank}-{file}", data)
        elif folder != "nodes" or self._counts(file):
            self._write(name, data)

    def _counts(self, file: str) -> bool:
        """Tell whether what this node says of a node's end is to be believed.

        Of itself it knows best, unless others have given it up; of others, if nobody else does.
        """
        there = files.read_json(self.run.nodes / file)
        own = file.startswith(f"node-{self.rank}-")
        return there is None or (own and there.get("lost") is None)

    def _take_log(self, offset: int, data: bytes) -> None:
        path, node = self.run.log(self.rank), self.layout.names[self.rank]
        if self.writers.get(path.name) != node:
            # Another node had this rank in an earlier attempt: what it said stays in front.
            there = path.stat().st_size if path.exists() else 0
            self.memo["log_base"] = there - self.memo.get("log_offset", 0)
            self.writers[path.name] = node
        files.write_at(path, self.memo["log_base"] + offset, data)
        self.memo["log_offset"] = offset + len(data)

    def _take_result(self, answer: Mapping[str, Any], data: bytes) -> None:
        path = self._result_path(_safe(answer["file"], (RESULTS,)))
        part = path.with_name(path.name + _PART)
        if answer["offset"] == 0:
            files.create_folder(path.parent)
            files.remove(part)
        files.write_at(part, int(answer["offset"]), data)
        if answer["last"]:
            files.give_name(part, path, mode=int(answer["mode"]) & 0o777)
            self._have[answer["file"]] = answer["sign"]

    def _result_path(self, name: str) -> Any:
        """Return where a result goes: that of the first node as it is, others by their node."""
        parts = PurePosixPath(name).relative_to(RESULTS).parts
        above = (RESULTS,) if self.rank == 0 else (RESULTS, f"node-{self.rank}")
        return self.run.path.joinpath(*above, *parts)

    def _note_too_large(self, answer: Mapping[str, Any]) -> None:
        node, where = self.layout.names[self.rank], answer["where"]
        text = (
            f"The results of {node} are {int(answer['size']) / _MIB:.0f} MiB, more than "
            f"--sync-limit allows, and are still there:\n"
            f"  rsync -a {node}:{where}/ {self.run.path / RESULTS}/\n"
        )
        files.create_folder(self.run.path / RESULTS)
        files.write_text(self.run.path / RESULTS / f"NOT-COPIED-from-{node}.txt", text)

    def _write(self, name: str, data: bytes) -> None:
        path = self.run.path / name
        part = path.with_name(f".{path.name}{_PART}")
        files.remove(part)
        files.write_at(part, 0, data)
        files.give_name(part, path)


def _safe(name: str, asked: Collection[str]) -> str:
    """Return the name of a file on a node, which must be one of those `asked` for, or below."""
    path = PurePosixPath(name)
    if ".." in path.parts or not path.parts or path.parts[0] not in asked:
        raise RemoteError(f"the node sent a file that it was not asked for: {name!r}")
    return name


def _attempt_of(data: bytes) -> int | None:
    document = files.parse_json(data)
    return document.get("attempt") if document is not None else None


def _decide_first_failure(run: RunFolder, layout: SshLayout) -> None:
    """Choose the first failure of the attempt from what the nodes have told each other.

    The first node heard of all. But a rank that was killed breaks those on other nodes, whose
    nodes may have been heard before its own.
    """
    attempt, of = layout.attempt, len(layout.names)
    paths = (run.failures / f"{_TOLD}{rank}-{attempt}.json" for rank in range(of))
    told = [node_results.result_of(files.read_json(path)) for path in paths]
    results = [result for result in told if result is not None]
    killed = [r for r in results if r.lost is None and r.unfit is None and r.exit_code in _KILLED]
    if results:
        first = min(killed, key=lambda result: result.ended_at, default=results[0])
        node_results.note_failure(run, first, attempt=attempt, of=of)


_KILLED = frozenset({128 + 4, 128 + 7, 128 + 8, 128 + 9, 128 + 11})
"""Exit codes of what was killed (SIGKILL), or broke by itself (SIGILL, SIGBUS, SIGFPE, SIGSEGV);
SIGABRT is how NCCL ends what has lost its peers."""
