"""Read and follow the output of the nodes: lines, in bounded memory, whatever the bytes are."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from clusterkit.core.errors import UserError
from clusterkit.core.reading import open_regular
from clusterkit.core.text import ESCAPES, harmless, in_line
from clusterkit.core.throughput import step_of
from clusterkit.executors.run import placement
from clusterkit.executors.run.runfolder import RunFolder, listed, read_submission
from clusterkit.executors.ssh.agent_files import read_agents
from clusterkit.executors.submission import fetch
from clusterkit.jobs.state.load import Job
from clusterkit.jobs.watch import RESULTS_EVERY_S, Watch

Keep = Callable[[str], bool]
"""Whether a line, without its end, is one of those that are wanted."""

_CHUNK = 1 << 18
_FARTHEST = 1 << 30
"""Bytes before the end of a log in which its last lines are looked for, unless said."""
_LONGEST_LINE = 1 << 16
"""Longer lines are handed out in pieces: a progress bar may never end its line."""
_LOG = re.compile(r"node-([0-9]{1,5})\.log")
_MOST_OF_OTHERS = 1 << 24
"""Bytes of all logs of somebody else's job that are printed; a sparse file has any size."""
_TOO_MUCH = f"no more than {_MOST_OF_OTHERS >> 20} MiB of somebody else's logs"
_STEP_LINES, _STEP_BYTES = 200, 1 << 16
"""The lines and bytes at the end of a log in which its last step is looked for."""
_IDLE_S = 1.0
"""An unfinished line is shown when nothing follows it for this long."""


class LogReader:
    """Read a file that grows; start again where it was cut off or replaced."""

    def __init__(
        self,
        path: Path,
        *,
        prefix: str = "",
        tail: int | None = None,
        within: int = _FARTHEST,
        keep: Keep | None = None,
        limit: int | None = None,
    ) -> None:
        """Read `path` from its beginning, or from its last `tail` lines (`within` bytes) on.

        Lines for which `keep` is false are left out, and not counted. More than `limit` bytes are
        refused, by an error.
        """
        self.path = path
        self.prefix = prefix
        self.keep = keep
        self._room = sys.maxsize if limit is None else limit
        self._position = (
            0 if tail is None or keep is not None else tail_position(path, tail, within)
        )
        self._wanted = tail if keep is not None else None
        """How many lines of those that are there already, where each has to be looked at."""
        self._judged: bool | None = None
        """Whether a line is kept of which a part was too long to wait for the rest."""
        self._inode: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending = ""
        self._last_data = time.monotonic()

    def pieces(self) -> Iterator[str]:
        """Yield every line there is by now with its line end, many of them at a time."""
        if self._wanted is None:
            yield from self._pieces()
        else:
            lines = chain.from_iterable(map(io.StringIO, self._pieces()))  # at line feeds alone
            yield from deque(lines, min(self._wanted, sys.maxsize))
            self._wanted = None

    def _pieces(self) -> Iterator[str]:
        while chunk := self._read():
            self._last_data = time.monotonic()
            self._room -= len(chunk)
            if self._room < 0:
                raise UserError(_TOO_MUCH, hint="--node and --tail 1000, without --rank")
            text = self._pending + self._decoder.decode(chunk)
            lines, end, self._pending = text.rpartition("\n")
            if end and self.keep is not None:
                kept = [line for line in lines.split("\n") if self._is_kept(line)]
                lines, end = "\n".join(kept), end if kept else ""
            if end:
                yield self.prefix + lines.replace("\n", f"\n{self.prefix}") + end
            while len(self._pending) > _LONGEST_LINE:
                if self._is_kept(self._pending, whole=False):
                    yield self.prefix + self._pending[:_LONGEST_LINE]
                self._pending = self._pending[_LONGEST_LINE:]

    def rest(self, *, idle_s: float = 0.0) -> Iterator[str]:
        """Yield the unfinished last line, where nothing has followed it for `idle_s`."""
        if self._pending and time.monotonic() - self._last_data >= idle_s:
            if self._is_kept(self._pending, whole=False):
                yield self.prefix + self._pending
            self._pending = ""

    def _is_kept(self, line: str, *, whole: bool = True) -> bool:
        """Tell whether a line is wanted, or what follows the beginning of one."""
        kept = self._judged
        if kept is None:
            kept = self.keep is None or self.keep(line)
        self._judged = None if whole else kept
        return kept

    def _read(self) -> bytes:
        try:
            with os.fdopen(open_regular(self.path), "rb") as stream:
                about = os.fstat(stream.fileno())
                if about.st_size < self._position or self._inode not in {None, about.st_ino}:
                    self._position = 0
                    self._decoder.reset()
                self._inode = about.st_ino
                stream.seek(self._position)
                chunk = stream.read(_CHUNK)
        except OSError:
            return b""
        self._position += len(chunk)
        return chunk


def read_logs(
    run: RunFolder, node: int | None = None, *, tail: int | None = None, keep: Keep | None = None
) -> Iterator[str]:
    """Yield the output so far, node by node; with several nodes each line names its own.

    With `keep`, only lines for which it is true, and `tail` counts these.

    Raises:
        UserError: there is no such node.
    """
    submission = read_submission(run)
    if submission is not None and not run.state.exists():
        fetch(run, submission)
    ranks = _there(run) if node is None else ranks_of(run, node)
    pieces = _pieces(_readers(run, ranks, tail=tail, several=node is None, keep=keep))
    yield from pieces if run.foreign is None else _bounded(pieces)


def last_step_line(run: RunFolder, *, or_any: bool = False) -> str | None:
    """Return the last line that tells a step of the training, with its loss or speed if it has one.

    That is one of the first node that tells any, near the end of its log. Where none does it is
    the last line of the first that printed one with `or_any`, and else None.
    """
    last = None
    for rank in _there(run):
        reader = LogReader(run.log(rank), tail=_STEP_LINES, within=_STEP_BYTES)
        lines = "".join((*reader.pieces(), *reader.rest())).split("\n")
        told = next((line for line in reversed(lines) if step_of(line) is not None), None)
        if told is not None:
            return _plain(told)
        last = last or next(filter(None, map(_plain, reversed(lines))), None)
    return last if or_any else None


def _plain(line: str) -> str:
    return in_line(ESCAPES.sub("", line.rpartition("\r")[2])).strip()


def _pieces(readers: Iterable[LogReader]) -> Iterator[str]:
    for reader in readers:
        yield from reader.pieces()
        for piece in reader.rest():
            yield piece + "\n"


def _bounded(pieces: Iterable[str]) -> Iterator[str]:
    """Yield what somebody else's job has printed: what can be printed, and not without end."""
    room = _MOST_OF_OTHERS
    for piece in pieces:
        if (room := room - len(piece)) < 0:
            yield f"clusterkit: {_TOO_MUCH}; try --tail 1000\n"
            return
        yield harmless(piece)


def follow(
    run: RunFolder,
    node: int | None = None,
    *,
    tail: int | None = None,
    keep: Keep | None = None,
    changed: Callable[[Job], None] = lambda _: None,
) -> Iterator[str]:
    """Yield the output as it comes, until the job is over and all of it has been read.

    `changed` hears of new states, and of the reasons for which the job is pending. With `keep`,
    only lines for which it is true, and `tail` counts these.

    Pieces are of many lines and end with a line end, but for a line that is not finished yet (one
    node only).

    Raises:
        UserError: there is no such node.
    """
    pieces = _followed(run, node, tail=tail, keep=keep, changed=changed)
    yield from pieces if run.foreign is None else _bounded(pieces)


def _followed(
    run: RunFolder,
    node: int | None,
    *,
    tail: int | None,
    keep: Keep | None,
    changed: Callable[[Job], None],
) -> Iterator[str]:
    watch = Watch(run, starts=True)
    ranks = ranks_of(run, node)
    found = _readers(run, ranks, tail=tail, several=node is None, keep=keep)
    readers = dict(zip(ranks, found, strict=True))
    hosts = None
    while True:
        # Looked at before reading, so that what a job wrote last is read after its end.
        for job in watch.look():
            changed(job)
        over = watch.over
        if node is None:
            _add_new(run, readers, keep)
            if hosts is None and len(readers) > 1:
                hosts = _label(run, readers)
        for reader in readers.values():
            yield from reader.pieces()
            if len(readers) == 1 and not over and keep is None:  # else only a whole line tells
                yield from reader.rest(idle_s=_IDLE_S)
        if over:
            break
        time.sleep(RESULTS_EVERY_S)
    yield from _pieces(readers.values())


def ranks_of(run: RunFolder, node: int | None = None) -> list[int]:
    """Return the nodes that have output or will have some; `node` alone where that is one of them.

    Raises:
        UserError: there is no such node.
    """
    there = _there(run)
    submission = read_submission(run)
    tasks = submission.tasks if submission is not None else 0
    if node is None:
        return sorted({*there, *range(tasks)})
    if node not in there and node >= tasks:
        count = max(tasks, len(there))
        only = ", because its command runs once" if submission and submission.once else ""
        raise UserError(
            f"no node {node}: the job has output of {count}{only}", hint="nodes count from 0"
        )
    return [node]


def tail_position(path: Path, lines: int, within: int = _FARTHEST) -> int:
    """Return where the last `lines` lines of a file begin, reading it from its end."""
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            position = end = stream.seek(0, os.SEEK_END)
            if lines == 0:
                return end
            remaining, first = lines, max(0, end - within)
            while position > first:
                start = max(0, position - _CHUNK)
                stream.seek(start)
                chunk = stream.read(position - start)
                if position == end and chunk.endswith(b"\n"):
                    remaining += 1  # the end of the last line begins no other
                at = len(chunk)
                while (at := chunk.rfind(b"\n", 0, at)) >= 0:
                    remaining -= 1
                    if remaining == 0:
                        return start + at + 1
                position = start
    except OSError:
        return 0
    return first


def _readers(
    run: RunFolder,
    ranks: Sequence[int],
    *,
    several: bool,
    tail: int | None = None,
    keep: Keep | None = None,
) -> list[LogReader]:
    prefixed = several and len(ranks) > 1
    hosts = _hosts(run) if prefixed else {}
    return [
        _reader(run, rank, prefix=_prefix(rank, hosts) if prefixed else "", tail=tail, keep=keep)
        for rank in ranks
    ]


def _reader(
    run: RunFolder, rank: int, *, prefix: str = "", tail: int | None = None, keep: Keep | None
) -> LogReader:
    limit = _MOST_OF_OTHERS if keep is not None and run.foreign is not None else None
    return LogReader(run.log(rank), prefix=prefix, tail=tail, keep=keep, limit=limit)


def _add_new(run: RunFolder, readers: dict[int, LogReader], keep: Keep | None) -> None:
    """Read also what has appeared since: an elastic job has more nodes than it must have."""
    new = [rank for rank in _there(run) if rank not in readers]
    if new:
        readers |= {rank: _reader(run, rank, keep=keep) for rank in new}
        _label(run, readers)


def _label(run: RunFolder, readers: Mapping[int, LogReader]) -> Mapping[int, str] | None:
    """Have the lines of each node begin with its number and host; None where no host is known."""
    hosts = _hosts(run)
    for rank, reader in readers.items():
        reader.prefix = _prefix(rank, hosts)
    return hosts or None


def _hosts(run: RunFolder) -> Mapping[int, str]:
    agents = () if run.foreign is not None else read_agents(run)
    return {**{agent.rank: agent.node for agent in agents}, **placement.hosts(run)}


def _prefix(rank: int, hosts: Mapping[int, str]) -> str:
    """Return `[node-1 n2] `, or `[node-1] ` where its host is not known or only has that number."""
    host = hosts.get(rank, "").partition(".")[0]
    known = f" {host}" if host and not re.fullmatch(r"node-\d+|\d+", host) else ""
    return f"[node-{rank}{known}] "


def _there(run: RunFolder) -> list[int]:
    return sorted(int(found[1]) for found in map(_LOG.fullmatch, listed(run.logs)) if found)
