"""The files of one node that shares no run folder: asked for, checked, written.

A node only has a say in files of its own, in what others may be told of it, and in a log that it
continues where the client left off. How much it may send is bounded for each file, each call and
altogether, and so is the time of a call: what is left comes with the next one.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from clusterkit.core.bounds import Attempt, Moment
from clusterkit.core.errors import RemoteError
from clusterkit.core.model import SYNC_LIMIT_MIB, NodeResult
from clusterkit.core.shell import quote
from clusterkit.executors.run import hangs, node_results
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh import inbox
from clusterkit.executors.ssh.agent_files import AgentFile, EndFile
from clusterkit.executors.ssh.inbox import (
    MIB,
    SMALL_MOST,
    Done,
    Inbox,
    Piece,
    Sign,
    Size,
    next_answer,
    parsed,
    relative,
)
from clusterkit.executors.ssh.layout import SshLayout
from clusterkit.transport.ssh.session import Nonsense, OutOfTime, Session
from clusterkit.transport.sync.helper import Helper

RESULTS = "results"
_CALL_S = 15.0
_BRIEF_S = 8.0
_LOG_CALL = 64 * MIB
"""Of a job that runs: the rest comes the next time."""
_LOG_MOST = 1 << 30
"""Of one node altogether; what is beyond it stays there."""
_PIECE_MOST = MIB // 4
"""Bytes of a log or result that a node sends at once."""
_SMALL_CALL = 16 * MIB
_SMALL_COST = 256
"""What a small file counts beside its bytes, so that there are not too many."""
_RESULTS_MOST = 50_000
"""Results of one node: their names are kept in memory."""
_NAMES_MOST = 4 * MIB
"""Bytes of those names."""
_NOTE = "NOT-COPIED-from-"
_OF_NODE = re.compile(rf"node-[0-9]+|{_NOTE}.*")
"""Names that the client gives; results of the first node that have one go to its own folder."""


class StillComing(RemoteError):  # noqa: N818 - a state of the node, not a mistake of anyone
    """The node answers, and has more than one call could bring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A result of which the beginning is here."""

    name: str
    sign: Sign
    at: Size


@dataclass(slots=True, kw_only=True)
class Progress:
    """What was brought of a node."""

    over: Attempt | None = None
    """The attempt of which everything is here."""
    failed_at: Moment | None = None
    nonsense: str | None = None
    """What it said then, where that was nothing that a node says."""
    log_offset: Size = 0
    """How much of its own log is here."""
    log_base: Size = 0
    """Where in the log here that begins: another node may have had the rank before."""
    have: dict[str, Sign] = field(default_factory=dict)
    part: Part | None = None


class NodeFiles:
    """One node of the run, and what has been brought from it."""

    def __init__(
        self,
        run: RunFolder,
        layout: SshLayout,
        rank: int,
        progress: Progress,
        writers: dict[str, str],
    ) -> None:
        """Bring the files of the node that has this rank; `writers` is shared by all nodes."""
        self.run = run
        self.layout = layout
        self.rank = rank
        self.node = layout.names[rank]
        self.progress = progress
        self.writers = writers
        self._inbox = Inbox(run.path, self.node)
        self._log = PurePosixPath("logs", run.log(rank).name)
        self._part = PurePosixPath(f".results-{rank}.ck-part")
        self._end: bytes | None = None
        self._has_all_small = False
        self._moved = False
        self._small_left = _SMALL_CALL
        self._results_left = self._results_most
        self._finished: set[str] = set()
        self._names_size = sum(map(len, progress.have))

    @property
    def is_over(self) -> bool:
        """Whether everything of this attempt is here."""
        return self.progress.over == self.layout.attempt

    def note(self, error: RemoteError | None) -> None:
        """Remember how the node answered."""
        failed = error is not None and not isinstance(error, StillComing)
        self.progress.failed_at = time.time() if failed else None
        self.progress.nonsense = error.what if isinstance(error, Nonsense) else None

    @property
    def last_error(self) -> RemoteError:
        """What is said of a node that is not asked again so soon."""
        if self.progress.nonsense is not None:
            return self._nonsense(self.progress.nonsense)
        return RemoteError("no answer a moment ago", node=self.node)

    @property
    def _results_most(self) -> int:
        limit_mib = self.layout.sync.limit_mib if self.layout.sync else SYNC_LIMIT_MIB
        return limit_mib * MIB

    def bring(self, session: Session, *, gone: bool = False, brief: bool = False) -> None:
        """Bring what is new; of a node agent that has `gone` without a word, the results as well.

        Raises:
            StillComing: there is more than one call could bring.
            RemoteError: the node could not say it all, or says what no node says.
            UserError: it cannot be written here.
        """
        helper = Helper(session.within(_BRIEF_S if brief else _CALL_S), self.layout.python)
        try:
            self._read(helper, log_most=0 if brief else _LOG_CALL)
            if brief or (self._end is None and not gone):
                return
            self._moved = False
            self._read(helper, log_most=_LOG_MOST, results=True)
        except OutOfTime as error:
            if self._end is None and not gone and self._has_all_small:
                return  # it runs, and the rest of its log comes the next time
            if self._moved:
                raise StillComing("its files are still coming", node=self.node) from error
            raise
        if self._end is not None:
            self._inbox.replace(PurePosixPath("ends", f"{self.rank}.json"), self._end)
            self.progress.over = self.layout.attempt

    def _read(self, helper: Helper, *, log_most: int, results: bool = False) -> None:
        part = self.progress.part
        offset = self._log_offset()
        helper.tell(
            "fetch",
            folder=self.layout.folder(self.run),
            have=self.progress.have,
            small=self._small,
            small_most=SMALL_MOST,
            logs={str(self._log): offset},
            logs_most=max(0, min(log_most, _LOG_MOST - offset)),
            trees=(RESULTS,) if results else (),
            tree_most=self._results_most,
            part=[part.name, part.sign, part.at] if part is not None else None,
        )
        log_end = offset + log_most
        answer, data = next_answer(helper)
        while isinstance(answer, Piece):
            path = relative(answer.file, node=self.node)
            large = path == self._log or (results and path.parts[0] == RESULTS)
            if large and len(data) > _PIECE_MOST:
                raise self._nonsense("a piece longer than any that is sent")
            if not large:
                self._take_small(path, answer, data)
            elif path == self._log:
                self._take_log(answer, data, log_end)
            else:
                self._take_result(path, answer, data)
            answer, data = next_answer(helper)
        if results:
            self._note(answer)

    @property
    def _small(self) -> tuple[str, ...]:
        """What is asked for beside its log: files of its own, and folders of which some are."""
        rank, job = self.rank, self.layout.job_id
        stacks = hangs.stacks_file(self.run, self.layout.attempt, rank)
        return (
            f"keepers/{rank}.json",
            f"ends/{rank}.json",
            "nodes",
            "failures",
            hangs.hang_file(self.run, self.layout.attempt).name,
            stacks.relative_to(self.run.path).as_posix(),
            *(f"submitit/{job}_{rank}_log.{kind}" for kind in ("out", "err")),
            f"submitit/keeper_{rank}.log",
        )

    def _take_small(self, path: PurePosixPath, answer: Piece, data: bytes) -> None:
        requested = self._small
        if str(path) not in requested and not (len(path.parts) == 2 and path.parts[0] in requested):
            raise self._nonsense(f"a file that it was not asked for: {answer.file[:80]!r}")
        if not answer.last:
            raise self._nonsense("a small file in pieces")
        self._small_left -= len(data) + _SMALL_COST
        if self._small_left < 0:
            raise self._nonsense(f"more than {_SMALL_CALL // MIB} MiB of small files")
        take = {
            "keepers": self._take_agent,
            "ends": self._take_end,
            "nodes": self._take_end_of_node,
            "failures": self._take_failure,
        }.get(path.parts[0], self._inbox.replace)
        take(path, data)
        if path.parts[0] != "ends":  # kept in memory until everything else is here
            self._remember(answer.file, answer.sign)

    def _take_agent(self, path: PurePosixPath, data: bytes) -> None:
        found = parsed(AgentFile, data)
        if found is None or found.node != self.node:
            raise self._nonsense(f"{path} describes no process that keeps it")
        if found.attempt <= self.layout.attempt:  # else another client has started the next
            self._inbox.replace(path, inbox.document_of(found))

    def _take_end(self, path: PurePosixPath, data: bytes) -> None:
        found = parsed(EndFile, data)
        if found is None or found.node != self.node or not found.state.final:
            raise self._nonsense(f"{path} tells of no end of its own")
        if found.attempt == self.layout.attempt:
            self._end = inbox.document_of(found)

    def _take_end_of_node(self, path: PurePosixPath, data: bytes) -> None:
        """Take how a node ended: of itself as a result, of others that they have gone."""
        rounds = inbox.ROUNDS.fullmatch(path.name)
        if rounds is not None and self.rank == 0 and self._is_known(rounds["attempt"]):
            self._inbox.replace(path, data)  # the first node is where the others meet
        match = inbox.RESULT.fullmatch(path.name)
        if match is None or not self._is_known(match["attempt"]):
            return
        rank, attempt = int(match["rank"]), int(match["attempt"])
        result = self._result(path, data)
        if result.node_rank != rank:
            raise self._nonsense(f"{path} is the result of another node")
        if attempt < self.layout.attempt:
            there = node_results.read_result(self.run, rank, attempt)
            if result.node == self.node and (there is None or there.node == self.node):
                self._write_result(path, result, attempt)
        elif rank == self.rank and result.node == self.node:
            self._write_result(path, result, attempt)
        elif rank == self.rank or result.lost is None or not self._names(rank, result):
            raise self._nonsense(f"{path} is the result of another node")
        else:
            self._write_result(inbox.reported_loss(self.rank, rank, attempt), result, attempt)

    def _names(self, rank: int, result: NodeResult) -> bool:
        """Tell whether a result names the node that has this rank."""
        return self.layout.names[rank : rank + 1] == (result.node,)

    def _take_failure(self, path: PurePosixPath, data: bytes) -> None:
        match = inbox.FAILURE.fullmatch(path.name)
        if match is not None and self._is_known(match["attempt"]):
            attempt = int(match["attempt"])
            reported = inbox.reported_failure(self.rank, attempt)
            self._write_result(reported, self._result(path, data), attempt)

    def _is_known(self, attempt: str) -> bool:
        """Tell whether there was such an attempt; else another client has started it just now."""
        return int(attempt) <= self.layout.attempt

    def _result(self, path: PurePosixPath, data: bytes) -> NodeResult:
        result = parsed(NodeResult, data)
        if result is None:
            raise self._nonsense(f"{path} is not a result")
        return result

    def _write_result(self, path: PurePosixPath, result: NodeResult, attempt: int) -> None:
        document = node_results.document_of(result, attempt, len(self.layout.names))
        self._inbox.replace(path, inbox.document_of(document))

    def _log_offset(self) -> int:
        """Return from where on the log is wanted; where it is cut off here, from there."""
        progress, size = self.progress, self._inbox.size(self._log)
        if self.writers.get(self._log.name) != self.node:
            # Another node had this rank in an earlier attempt: what it said stays in front.
            progress.log_offset = min(progress.log_offset, size)
            progress.log_base = size - progress.log_offset
        elif progress.log_base + progress.log_offset > size:
            progress.log_base = min(progress.log_base, size)
            progress.log_offset = size - progress.log_base
        return progress.log_offset

    def _take_log(self, answer: Piece, data: bytes, end: int) -> None:
        self._has_all_small = True
        progress = self.progress
        if answer.offset != progress.log_offset or not data:
            raise self._nonsense(f"its log at {answer.offset}, wanted at {progress.log_offset}")
        if answer.offset + len(data) > min(end, _LOG_MOST):
            raise self._nonsense("more of its log than it was asked for")
        self.writers[self._log.name] = self.node
        self._inbox.write_at(self._log, progress.log_base + answer.offset, data)
        progress.log_offset += len(data)
        self._moved = True

    def _take_result(self, path: PurePosixPath, answer: Piece, data: bytes) -> None:
        progress = self.progress
        if len(path.parts) == 1 or answer.file in self._finished:
            raise self._nonsense(f"a result that it was not asked for: {answer.file[:80]!r}")
        expected = Part(name=answer.file, sign=answer.sign, at=answer.offset)
        if answer.offset == 0:
            self._inbox.remove(self._part)
        elif progress.part != expected:
            raise self._nonsense(f"{answer.file[:80]!r} at {answer.offset}")
        at = answer.offset + len(data)
        self._results_left -= len(data)
        if at > answer.sign[0] or self._results_left < 0 or not (data or answer.last):
            raise self._nonsense("more bytes than its results have")
        self._inbox.write_at(self._part, answer.offset, data)
        progress.part = Part(name=answer.file, sign=answer.sign, at=at)
        self._moved = True
        if answer.last:
            executable = bool(answer.mode & 0o100)
            self._inbox.give_name(self._part, self._result_path(path), executable=executable)
            progress.part = None
            self._remember(answer.file, answer.sign)
            self._finished.add(answer.file)

    def _remember(self, name: str, sign: Sign) -> None:
        """Note that a file is here as it is there."""
        have = self.progress.have
        self._names_size += len(name) * (name not in have)
        if len(have) >= _RESULTS_MOST or self._names_size > _NAMES_MOST:
            raise self._nonsense(
                f"more than {_RESULTS_MOST} files, or {_NAMES_MOST} bytes of names"
            )
        have[name] = sign

    def _result_path(self, path: PurePosixPath) -> PurePosixPath:
        """Return where a result goes: that of the first node as it is, others by their node."""
        parts = path.parts[1:]
        if self.rank == 0 and not _OF_NODE.fullmatch(parts[0]):
            return path
        return PurePosixPath(RESULTS, f"node-{self.rank}", *parts)

    def _note(self, answer: Done) -> None:
        """Note results that are still on the node, and how to get them."""
        if not (answer.too_large or answer.left_out):
            return
        # From the home of the login on: rsync before 3.2.4 and later do not agree on a quoted ~.
        where = f"{self.layout.folder(self.run).removeprefix('~/')}/{RESULTS}"
        if answer.too_large:
            why = f"The results of {self.node} are {answer.too_large / MIB:.0f} MiB, more than "
            why += "--sync-limit allows, and are still there"
        else:
            why = f"{answer.left_out} results of {self.node} have names that cannot be printed, "
            why += "and are still there"
        source = quote(f"{self.node}:{where}/")
        text = f"{why}:\n  rsync -a {source} {quote(f'{self.run.path / RESULTS}/')}\n"
        name = PurePosixPath(RESULTS, f"{_NOTE}{self.node}.txt")
        self._inbox.replace(name, text.encode())

    def _nonsense(self, what: str) -> Nonsense:
        return Nonsense(what, node=self.node)
