"""Work with many nodes over ssh at once, each with a conversation of its own.

`SshTransport` asks all nodes the same and reads what comes. Here a function of the caller's works
with each node step by step, sending and receiving bytes without an end, in a thread of its own.
Nodes may take as long as they need while something moves; one that is silent is given up, and so is
one whose line has no end, or that still talks when its time is up (`Session.within`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from clusterkit.core.errors import RemoteError
from clusterkit.transport.base import check_names
from clusterkit.transport.fanout import visit_all
from clusterkit.transport.probe import first_line
from clusterkit.transport.ssh.client import BROKEN as BROKEN_BY
from clusterkit.transport.ssh.client import GIBBERISH, SshClient
from clusterkit.transport.ssh.config import SshOptions
from clusterkit.transport.ssh.transport import FAILURES, NOISE, SHELL, SLICE_S, NodeVisit, explain

T = TypeVar("T")

IDLE_S = 30.0
"""A node that neither sends nor takes anything for so long is given up."""
BROKEN = "the connection broke"
AGAIN = "run it again: what has arrived is not sent again"
_PIECE = 1 << 15
_LINE = 4 << 20
"""Bytes of a line: room for the numbers of half a million files."""
_ROOM = 1 << 20
"""Bytes behind what is read now: answers come while something else is sent."""
_ERRORS = 4 << 20
"""Bytes on stderr, of which the last few are told."""
_LONGEST_S = 6 * 3600.0
"""Of all that is done with a node, where the caller sets no limit: a large image takes hours."""


class Nonsense(RemoteError):  # noqa: N818 - what a node says, not a mistake of anyone
    """A node says what no node of ours says; nothing of it may be used."""

    def __init__(self, what: str, *, node: str) -> None:
        """Say what it says, in words of this side."""
        super().__init__(f"answers nonsense: {what}", node=node)
        self.what = what


class OutOfTime(RemoteError):  # noqa: N818 - as above
    """A node still talks when its time is up."""


@dataclass(frozen=True, slots=True)
class _Limit:
    """Until when a conversation may last, by `time.monotonic`."""

    node: str
    seconds: float
    at: float

    def keep(self) -> None:
        if time.monotonic() > self.at:
            raise OutOfTime(f"no end of its answer within {self.seconds:g} s", node=self.node)


class Talk:
    """A shell script that runs on a node, with its input and output."""

    def __init__(self, channel: Any, script: str, moved: Callable[[], None], limit: _Limit) -> None:
        """Start `script`, POSIX sh; `moved` is called whenever bytes come or go."""
        self._channel = channel
        self._moved = moved
        self._limit = limit
        self._read = bytearray()
        self._noise = bytearray()
        self._errors = 0
        self._room = _LINE + _ROOM
        self._end = limit
        channel.settimeout(SLICE_S)
        channel.exec_command(SHELL)
        self.send(script.encode())

    def send(self, data: bytes) -> None:
        """Send bytes, as fast as the node takes them; what it says meanwhile is a sign of life.

        Raises:
            OSError: the other side has closed.
            OutOfTime: there was a limit.
        """
        rest = memoryview(data)
        while rest:
            self._limit.keep()
            try:
                rest = rest[self._channel.send(rest[:_PIECE]) :]
            except TimeoutError:
                pass
            else:
                self._moved()
            if self._channel.recv_ready():
                self._fill()

    def expect(self, limit_s: float) -> None:
        """Give the node so long for what comes next, if the whole has no nearer end."""
        soon = _Limit(self._end.node, limit_s, time.monotonic() + limit_s)
        self._limit = min(soon, self._end, key=lambda limit: limit.at)

    def end_input(self) -> None:
        """Let the script find the end of its input."""
        self._channel.shutdown_write()

    def line(self) -> bytes | None:
        """Return the next line without its end; None where the output has ended.

        Raises:
            Nonsense: it has no end.
            OutOfTime: there was a limit.
        """
        searched = 0
        while (end := self._read.find(b"\n", searched)) < 0:
            searched = len(self._read)
            if searched > _LINE:
                raise Nonsense(f"a line of more than {_LINE} bytes", node=self._limit.node)
            if not self._fill():
                return None
        found = bytes(self._read[:end])
        del self._read[: end + 1]
        return found

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes.

        Raises:
            EOFError: the output has ended before.
            OutOfTime: there was a limit.
        """
        self._room = max(count, _LINE) + _ROOM
        while len(self._read) < count:
            if not self._fill():
                raise EOFError
        self._room = _LINE + _ROOM
        found = bytes(self._read[:count])
        del self._read[:count]
        return found

    def error_output(self) -> str:
        """Return the last of what came on stderr, once the script has ended."""
        self._listen()
        return self._noise.decode(errors="replace").strip()

    def exit_code(self) -> int:
        """Return the exit code of the script; -1 where it was ended by a signal."""
        return int(self._channel.recv_exit_status())

    def _fill(self) -> bool:
        while True:
            self._limit.keep()
            self._listen()
            try:
                data = self._channel.recv(1 << 16)
            except TimeoutError:
                continue  # also where it was closed just now: what came before is still there
            self._moved()
            self._read += data
            if len(self._read) > self._room:
                raise Nonsense("more than it was asked for", node=self._limit.node)
            return bool(data)

    def _listen(self) -> None:
        while self._channel.recv_stderr_ready():
            self._limit.keep()
            data = self._channel.recv_stderr(1 << 16)
            self._errors += len(data)
            if self._errors > _ERRORS:
                raise Nonsense(f"more than {_ERRORS} bytes on stderr", node=self._limit.node)
            self._noise = (self._noise + data)[-NOISE:]


class Session:
    """A login on one node."""

    def __init__(
        self, node: str, transport: Any, moved: Callable[[], None], limit_s: float = _LONGEST_S
    ) -> None:
        """Talk through an open connection; all of it for `limit_s` at most."""
        self.node = node
        self._transport = transport
        self._moved = moved
        self._limit = _Limit(node, limit_s, time.monotonic() + limit_s)

    def within(self, limit_s: float) -> Session:
        """Return the same login, of which every talk ends after so long, whatever still comes."""
        return Session(self.node, self._transport, self._moved, limit_s)

    def talk(self, script: str) -> Talk:
        """Start a script."""
        channel = self._transport.open_session(timeout=IDLE_S)
        return Talk(channel, script, self._moved, self._limit)


def on_nodes(
    options: SshOptions, nodes: Sequence[str], work: Callable[[Session], T]
) -> dict[str, T | RemoteError]:
    """Call `work` with a login on each node, all at once; return what it returns, or its error.

    A `RemoteError` that `work` raises is the answer of its node, as is a lost connection. What else
    it raises ends all of them, and is raised here.

    Raises:
        UserError: a node's name is none, or ssh's configuration cannot be read.
    """
    check_names(tuple(nodes))
    client = SshClient(options)
    visits = [_Visit(node, client, work) for node in nodes]
    try:
        answers = visit_all(visits, threads=options.workers, on_reply=lambda _: None)
    finally:
        client.close()
    return {node: answer.value for node, answer in zip(nodes, answers, strict=True)}


@dataclass(frozen=True, slots=True)
class _Answer(Generic[T]):
    value: T | RemoteError


class _Visit(NodeVisit, Generic[T]):
    def __init__(self, node: str, client: SshClient, work: Callable[[Session], T]) -> None:
        super().__init__(node, client)
        self._work = work

    def run(self) -> _Answer[T]:
        try:
            connection = self.log_in(*self.dial())
            self.enter("at work", IDLE_S)
            return _Answer(self._work(Session(self.node, connection.transport, self.moved)))
        except RemoteError as error:
            return self.late() if self._line.is_cut else _Answer(error)
        except FAILURES as error:
            return self.late() if self._line.is_cut else _Answer(self._explained(error))
        finally:
            self.deadline = None
            self._line.close()

    def late(self) -> _Answer[T]:
        return _Answer(RemoteError(self.silence(), node=self.node))

    def _explained(self, error: BaseException) -> RemoteError:
        if self._stage == "at work" and isinstance(error, BROKEN_BY):
            why = first_line(str(error)) if not isinstance(error, EOFError) else ""
            text = BROKEN + (f": {why}" if why else "")
            return RemoteError(text, node=self.node, hint=AGAIN)
        if self._stage == "at work" and isinstance(error, GIBBERISH):
            return Nonsense(first_line(str(error)) or type(error).__name__, node=self.node)
        return RemoteError(explain(error)[1], node=self.node)
