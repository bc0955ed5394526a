"""A login that lasts, on one node: a command with this process's streams, and ways to ports."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import paramiko

from clusterkit.core.errors import RemoteError
from clusterkit.transport.base import check_names
from clusterkit.transport.ssh.client import Line, SshClient
from clusterkit.transport.ssh.config import SshOptions
from clusterkit.transport.ssh.transport import FAILURES, explain

_PIECE = 1 << 15
_ALIVE_EVERY_S = 15
_WATCH = """
(
  trap '' TERM
  while kill -0 $PPID 2>/dev/null; do sleep 1; done
  kill -s TERM -- -$$
  sleep 8
  kill -s KILL -- -$$
) </dev/null >/dev/null 2>&1 &
"""
"""Without a terminal sshd leaves what it started alone when the connection ends."""
_NO_CODE = 255
"""What ssh returns where the other side says no exit code."""


class Login:
    """An open login on a node; one that broke is opened anew when it is needed again."""

    def __init__(self, node: str, options: SshOptions) -> None:
        """Log in.

        Raises:
            UserError: the node's name is invalid, or ssh's configuration cannot be read.
            RemoteError: the node cannot be logged in to.
        """
        check_names([node])
        self.node = node
        self._client = SshClient(options)
        self._lock = threading.Lock()
        self._line = Line()
        self._transport: Any = None
        self._opened()

    def close(self) -> None:
        """Log out."""
        self._line.close()
        self._client.close()

    def run(self, script: str, *, terminal: bool = False) -> int:
        """Run a script of bash with this process's streams, or on a `terminal`.

        Returns:
            Its exit code; 255 where a signal ended it.

        Raises:
            RemoteError: the connection broke.
        """
        text = script if terminal else _WATCH + script
        word = base64.b64encode(text.encode()).decode()
        with self._explained():
            channel = self._opened().open_session()
            if terminal:
                channel.get_pty(os.environ.get("TERM", "vt100"), *shutil.get_terminal_size())
            # No login shell finds anything to expand in it: sh and its kin, csh, fish.
            channel.exec_command(f"exec bash -c 'eval \"$(echo {word} | base64 -d)\"'")
        with _raw(channel) if terminal else nullcontext():
            _join(channel)
        code = channel.recv_exit_status()
        if code < 0 and not self._transport.is_active():
            raise RemoteError("the connection broke", node=self.node)
        return int(code) if code >= 0 else _NO_CODE

    def reach(self, port: int) -> Any:
        """Return an open channel to a port that listens on the node's loopback.

        Raises:
            RemoteError: nothing listens there, or the node cannot be reached.
        """
        with self._explained():
            try:
                return self._opened().open_channel("direct-tcpip", ("localhost", port), ("", 0))
            except paramiko.ChannelException as error:
                if error.code != paramiko.OPEN_FAILED_CONNECT_FAILED:
                    raise
                message = f"port {port}: nothing listens there"
                raise RemoteError(message, node=self.node) from error

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Let what a connection fails of be a `RemoteError` that says what it means."""
        try:
            yield
        except FAILURES as error:
            raise RemoteError(explain(error)[1], node=self.node) from error

    def _opened(self) -> Any:
        with self._lock:
            if self._transport is None or not self._transport.is_active():
                self._line.close()
                self._line = Line()
                try:
                    with self._explained():
                        self._transport = self._logged_in()
                except RemoteError:
                    self._line.close()
                    raise
            return self._transport

    def _logged_in(self) -> Any:
        target = self._client.resolve(self.node)
        limit_s = target.connect_timeout_s
        sock = self._client.dial(target, self._line)
        transport = self._client.log_in(target, sock, self._line, limit_s=limit_s).transport
        transport.set_keepalive(_ALIVE_EVERY_S)
        return transport


def _join(channel: Any) -> None:
    """Let the other side have our input, and write what it prints, until it has ended."""

    def errors() -> None:
        _pump(channel.recv_stderr, lambda data: _write(2, data))

    def typed() -> None:
        with suppress(OSError):  # it reads no more
            _pump(lambda size: os.read(0, size), channel.sendall)
            channel.shutdown_write()

    threading.Thread(target=typed, daemon=True).start()
    listener = threading.Thread(target=errors, daemon=True)
    listener.start()
    sys.stdout.flush()
    _pump(channel.recv, lambda data: _write(1, data))
    listener.join()


def _pump(read: Callable[[int], bytes], write: Callable[[bytes], Any]) -> None:
    while data := read(_PIECE):
        write(data)


def _write(stream: int, data: bytes) -> None:
    while data:
        data = data[os.write(stream, data) :]


@contextmanager
def _raw(channel: Any) -> Iterator[None]:
    """Hand every key on, and the size of the terminal whenever it changes."""

    def resized(number: int, frame: object) -> None:
        del number, frame
        with suppress(*FAILURES):
            channel.resize_pty(*shutil.get_terminal_size())

    kept, before = termios.tcgetattr(0), signal.signal(signal.SIGWINCH, resized)
    try:
        tty.setraw(0, termios.TCSADRAIN)  # what was typed meanwhile counts
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, kept)
        signal.signal(signal.SIGWINCH, before)
