"""Run a script on many nodes by ssh: one connection per node, one session, one round trip."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import paramiko

from clusterkit.transport.base import Reply, check_names, reply_of
from clusterkit.transport.fanout import visit_all
from clusterkit.transport.probe import ReachProblem, first_line
from clusterkit.transport.script import AnswerReader, Compound
from clusterkit.transport.ssh.client import (
    BROKEN,
    GIBBERISH,
    JumpFailed,
    Line,
    SshClient,
    round_trip_s,
)
from clusterkit.transport.ssh.config import SshOptions, Target
from clusterkit.transport.ssh.keys import LoginRefused
from clusterkit.transport.ssh.known_hosts import HostKeyRefused

SHELL = "exec sh"
"""Understood by every login shell: sh and its kin, csh, fish."""

_DIALLERS = 512
"""Threads; all but `workers` of them only wait for a TCP connection, so that hosts which do not
answer do not keep the others waiting."""

NOISE = 4096
SLICE_S = 1.0

_SLACK_S = 5.0
"""paramiko's own time-outs come later than ours, which alone tell a time-out from a failure."""

FAILURES = (*BROKEN, *GIBBERISH, HostKeyRefused, LoginRefused, JumpFailed)
"""Why a node cannot be talked to; no other node is concerned."""


class SshTransport:
    """Nodes reached by ssh."""

    def __init__(self, options: SshOptions, *, keep: bool = False) -> None:
        """Hold the options; nothing is read or opened yet.

        With `keep`, connections stay open for the next `ask`, until `close`.
        """
        self._options = options
        self._keep = keep
        self._client: SshClient | None = None
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}

    def ask(
        self, nodes: Sequence[str], compound: Compound, *, on_reply: Callable[[Reply], None]
    ) -> tuple[Reply, ...]:
        """Run the script on every node at once; see `Transport.ask`.

        Raises:
            UserError: a node's name is none, or ssh's configuration cannot be read.
        """
        return self.ask_each(dict.fromkeys(nodes, compound), on_reply=on_reply)

    def ask_each(
        self, compounds: Mapping[str, Compound], *, on_reply: Callable[[Reply], None]
    ) -> tuple[Reply, ...]:
        """Run a script of its own on every node, all at once; see `Transport.ask`.

        Raises:
            UserError: a node's name is none, or ssh's configuration cannot be read.
        """
        check_names(tuple(compounds))
        client = self._opened()
        kept = self._kept if self._keep else None
        together = any(compound.together for compound in compounds.values())
        turns = threading.BoundedSemaphore(_DIALLERS if together else self._options.workers)
        visits = [
            _Question(node, compound, self._options, client, turns, kept)
            for node, compound in compounds.items()
        ]
        try:
            return visit_all(visits, threads=_DIALLERS, on_reply=on_reply)
        finally:
            if not self._keep:
                client.close()

    def close(self) -> None:
        """Close what was kept."""
        while self._kept:
            self._kept.popitem()[1].line.close()
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _opened(self) -> SshClient:
        """Return what connections share, and where it is kept, questions at the same time too."""
        if not self._keep:
            return SshClient(self._options)
        with self._lock:
            if self._client is None:
                self._client = SshClient(self._options)
            return self._client


@dataclass(frozen=True, slots=True)
class _Kept:
    """An open connection to a node."""

    connection: Any
    sock: Any
    line: Line
    timeout_s: float
    """For a session on it."""


class NodeVisit:
    """A node on the way to a login: what stage it is at, and until when that may last."""

    def __init__(self, node: str, client: SshClient) -> None:
        """Nothing is opened yet."""
        self.deadline: float | None = None
        self.node = node
        self._client = client
        self._line = Line()
        self._stage = "connecting"
        self._limit_s = 0.0

    def cut(self) -> None:
        """End what is under way, from another thread."""
        self._line.cut()

    def silence(self) -> str:
        """Say of a node that is given up where it has stopped."""
        return f"no answer within {self._limit_s:g} s: {self._stage}"

    def enter(self, stage: str, limit_s: float) -> None:
        """Begin a stage that may last so long."""
        self._stage, self._limit_s = stage, limit_s
        self.moved()

    def moved(self) -> None:
        """Give the stage all of its time again."""
        self.deadline = time.monotonic() + self._limit_s

    def dial(self) -> tuple[Target, Any]:
        """Return how the node is reached, and a socket to its SSH port; see `SshClient.dial`."""
        target = self._client.resolve(self.node)
        # A jump host on the way has a connection and a handshake of its own to make.
        self.enter("connecting", target.connect_timeout_s * (1 + 2 * len(target.jumps)))
        return target, self._client.dial(target, self._line)

    def log_in(self, target: Target, sock: Any) -> Any:
        """Return an open fabric connection over `sock`; see `SshClient.log_in`."""
        limit_s = target.connect_timeout_s
        self.enter("the SSH handshake", limit_s)
        return self._client.log_in(target, sock, self._line, limit_s=limit_s + _SLACK_S)


class _Question(NodeVisit):
    """One node: connect, wait for a turn, log in, run the script, read what comes."""

    def __init__(
        self,
        node: str,
        compound: Compound,
        options: SshOptions,
        client: SshClient,
        turns: threading.BoundedSemaphore,
        kept: dict[str, _Kept] | None,
    ) -> None:
        super().__init__(node, client)
        self._compound = compound
        self._options = options
        self._turns = turns
        self._kept = kept
        self._began = time.monotonic()
        self._reader = AnswerReader(compound)
        self._noise = bytearray()
        self._has_ended = False
        self._answered_at: float | None = None
        self._connect_s: float | None = None
        self._latency_s: float | None = None

    def run(self) -> Reply:
        self._began = time.monotonic()
        failure: Exception | None = None
        try:
            self._converse()
        except FAILURES as error:
            failure = error
        self.deadline = None
        self._line.close()
        return self._reply(failure)

    def late(self) -> Reply:
        return self._reply(None)

    def _converse(self) -> None:
        held = self._kept.pop(self.node, None) if self._kept is not None else None
        if held is not None and held.connection.transport.is_active():
            self._line = held.line
            with self._turns:
                self.enter("opening a session", held.timeout_s)
                self._run_script(held)
            return
        if held is not None:
            held.line.close()
        target, sock = self.dial()
        dialled_s = time.monotonic() - self._began
        self.deadline = None
        with self._turns:
            began = time.monotonic()
            connection = self.log_in(target, sock)
            self._connect_s = dialled_s + time.monotonic() - began
            self._run_script(_Kept(connection, sock, self._line, target.connect_timeout_s))

    def _run_script(self, on: _Kept) -> None:
        channel = on.connection.transport.open_session(timeout=on.timeout_s + _SLACK_S)
        self.enter("running the script", self._compound.timeout_s + self._options.margin_s)
        channel.settimeout(SLICE_S)
        channel.exec_command(SHELL)
        channel.sendall(self._compound.script.encode())
        channel.shutdown_write()
        self._read(channel)
        if self._answered_at is not None and not self._line.is_cut:
            self._latency_s = round_trip_s(on.connection, on.sock)
        if self._kept is not None and self._has_ended and not self._line.is_cut:
            channel.close()
            self._line = Line()
            self._kept[self.node] = on

    def _read(self, channel: Any) -> None:
        """Read until all probes have ended, the session has, or time is up."""
        while self.deadline is not None and time.monotonic() < self.deadline:
            try:
                data = channel.recv(1 << 16)
            except TimeoutError:
                data = None
            self._listen(channel)
            if data is None:
                if self._reader.excess:
                    return
                continue
            self._reader.feed(data)
            if self._answered_at is None and self._reader.has_begun:
                self._answered_at = time.time()
            if not data or self._reader.is_over:
                self._has_ended = True
                return
            if self._reader.excess:
                return

    def _listen(self, channel: Any) -> None:
        """Take what came on stderr, as long as that is no more than an answer may have."""
        while channel.recv_stderr_ready() and not self._reader.excess:
            data = channel.recv_stderr(1 << 16)
            self._reader.skip(len(data))
            self._noise = (self._noise + data)[-NOISE:]

    def _reply(self, failure: Exception | None) -> Reply:
        reply = reply_of(
            self.node,
            self._reader,
            self._explain(failure),
            via="ssh",
            seconds=time.monotonic() - self._began,
            answered_at=self._answered_at,
            latency_s=self._latency_s,
        )
        return replace(reply, reach=replace(reply.reach, connect_s=self._connect_s))

    def _explain(self, failure: Exception | None) -> tuple[ReachProblem, str]:
        silent = failure is None and not self._has_ended
        if self._line.is_cut or silent or isinstance(failure, TimeoutError):
            return ReachProblem.TIMEOUT, self.silence()
        if failure is None:
            message = first_line(
                (self._noise + b"\n" + self._reader.noise).decode(errors="replace")
            )
            return ReachProblem.SHELL, message or "the login shell ended without running the script"
        return explain(failure)


def explain(failure: BaseException) -> tuple[ReachProblem, str]:
    """Return what a failed connection means, in words without an exception's name."""
    if isinstance(failure, JumpFailed):
        problem, detail = explain(failure.__cause__ or OSError("no connection"))
        return problem, f"jump host {failure}: {detail}"
    if isinstance(failure, HostKeyRefused):
        return failure.problem, str(failure)
    for kind, problem, text in _MEANINGS:
        if isinstance(failure, kind):
            return problem, text or _message_of(failure)
    if isinstance(failure, GIBBERISH):
        return ReachProblem.UNREACHABLE, "what answers on its SSH port does not speak SSH"
    return ReachProblem.UNREACHABLE, _message_of(failure)


def _message_of(failure: BaseException) -> str:
    if isinstance(failure, paramiko.ChannelException):
        return str(failure.text).lower()
    text = failure.strerror if isinstance(failure, OSError) else None
    text = first_line(text or str(failure))
    if "protocol banner" in text:
        return "the connection was closed before the handshake (no SSH server, or a busy one)"
    return text[:1].lower() + text[1:] if text else "the connection was closed"


_MEANINGS: tuple[tuple[type[BaseException], ReachProblem, str], ...] = (
    (LoginRefused, ReachProblem.AUTH, ""),
    (paramiko.AuthenticationException, ReachProblem.AUTH, ""),
    (socket.gaierror, ReachProblem.NAME, ""),
    (ConnectionRefusedError, ReachProblem.REFUSED, "nothing listens on its SSH port"),
    (TimeoutError, ReachProblem.TIMEOUT, "no answer to the attempt to connect"),
)
