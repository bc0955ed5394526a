"""A login node by the user's own ssh: one connection that stays open, commands, conversations.

OpenSSH and not paramiko, because people log in here as their site has it: by one-time passwords,
Kerberos, security keys, several hosts in between, all of which ssh(1) knows and asks for itself.
The connection that the first command opens (ControlMaster, ssh_config(5)) serves those that follow,
also of other terminals, until nothing has used it for ten minutes.
"""

from __future__ import annotations

import base64
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterkit.core import commands, files
from clusterkit.core.commands import Answer
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.ownership import require_own
from clusterkit.transport.process import tied

if TYPE_CHECKING:
    from clusterkit.transport.ssh.session import Session
    from clusterkit.transport.sync.helper import Helper

LOST = 255
"""What ssh ends with where the connection could not be made, or broke."""
_OPENING = tuple(
    word
    for setting in (
        "ControlPersist=600", "ConnectTimeout=20",
        "ServerAliveInterval=10", "ServerAliveCountMax=3",
    )
    for word in ("-o", setting)
)  # fmt: skip
_TURN_S = 0.2
_LONGEST_FOLDER = 48
"""Bytes: a path of a socket has 107 at most (unix(7)), and ssh puts 58 behind the folder."""
_LONGEST = 96 << 10
"""Bytes of a script: a word of a command line has 128 KiB at most (execve(2)), and base64 adds."""


class LoginNode:
    """A machine that ssh logs in to."""

    def __init__(self, place: str) -> None:
        """Name it as `[USER@]HOST[:PORT]`; nothing is asked yet."""
        self.place = place
        host, _, port = place.partition(":")
        self.name = host
        self._target = (*(("-p", port) if port else ()), "--", host)
        self._shared: tuple[str, ...] | None = None

    def open(self) -> None:
        """Make sure of a connection; ssh asks on the terminal for what it has to know.

        Raises:
            RemoteError: the login node cannot be logged in to, or there is no ssh here.
            UserError: the folder of connections is somebody else's.
        """
        if self._shared is not None:
            return
        folder = _folder()
        shared: tuple[str, ...] = ("-o", f"ControlPath={folder / '%C'}")
        # That of a command before is found without ssh's reading its configuration.
        if not self._has_connection(shared):
            shared = () if self._shares_its_own() else shared
            # Of two at once the later would find the name taken, and stay without one.
            while not self._has_connection(shared):
                with files.locked(folder / "opening.lock") as mine:
                    if not mine:
                        time.sleep(_TURN_S)
                    elif not self._has_connection(shared):
                        self._connect(shared)
        self._shared = shared  # only now: an `open` that failed is tried again

    def _connect(self, shared: tuple[str, ...]) -> None:
        # With -f it goes into the background once it has logged in.
        ssh = ("ssh", "-f", "-N", "-M", "-T", *shared, *_OPENING)
        done = subprocess.run(
            [*ssh, *self._target],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise self._error(lines[-1] if lines else f"ssh ended with {done.returncode}")

    def argv(self, script: str, *, terminal: bool = False, extra: Sequence[str] = ()) -> list[str]:
        """Return the command line that runs a script of bash there, as a login shell does.

        What files of the login shell print goes to standard error.

        Raises:
            RemoteError: as `open`.
            UserError: the script is too long.
        """
        self.open()
        inner = f"exec 1>&3 3>&-\n{script}"
        whole = f"exec 3>&1 1>&2\nexec bash -lc {shlex.quote(inner)}"
        data = whole.encode(errors="surrogateescape")
        if len(data) > _LONGEST:
            raise UserError(
                f"the command line is too long for ssh: {len(data)} bytes, {_LONGEST} at most",
                hint="write the job into a file: submit --job FILE",
            )
        word = base64.b64encode(data).decode()
        # No login shell finds anything to expand in it: sh and its kin, csh, fish.
        command = f"exec bash -c 'eval \"$(echo {word} | base64 -d)\"'"
        way = "-tt" if terminal else "-T"
        # Else it says at the end of each that the shared connection is closed.
        return [
            "ssh",
            way,
            "-o",
            "LogLevel=ERROR",
            *(extra or self._shared or ()),
            *self._target,
            command,
        ]

    def answer(self, words: Sequence[str], *, timeout_s: float) -> Answer:
        """Run a command there to its end, in English; return what it said.

        Raises:
            RemoteError: as `open`, or the connection broke.
        """
        script = f"export LC_ALL=C; exec {shlex.join(words)}"
        found = commands.run_command(self.argv(script), timeout_s=timeout_s)
        self.require(found.code)
        return found

    def require(self, code: int) -> None:
        """Tell an exit code of ssh from that of a command.

        Raises:
            RemoteError: the connection broke.
        """
        if code == LOST and not self._has_connection(self._shared or ()):
            raise RemoteError(
                "the connection broke; jobs there go on",
                node=self.name,
                hint="clusterkit status, or take up the output again: clusterkit logs latest -f",
            )

    def open_session(self, timeout: float | None = None) -> Channel:
        """Return a new channel for a `transport.ssh.session.Session`.

        Raises:
            RemoteError: as `open`.
        """
        del timeout
        self.open()
        return Channel(["ssh", "-T", *(self._shared or ()), *self._target])

    def helper(self) -> Helper:
        """Return a conversation with a program there, in whatever Python it has.

        Raises:
            RemoteError: there is none, or as `open`.
        """
        from clusterkit.transport.sync.helper import Helper  # noqa: PLC0415 - with it, paramiko

        return Helper(self.session(), "python3")

    def session(self) -> Session:
        """Return a login on which scripts can be talked to."""
        from clusterkit.transport.ssh.session import Session  # noqa: PLC0415

        return Session(self.name, self, lambda: None)

    def _shares_its_own(self) -> bool:
        """Tell whether ssh's own configuration has commands share a connection.

        Then that is used: it may be open already.
        """
        said = commands.run_command(["ssh", "-G", *self._target], timeout_s=20)
        if not said.found:
            raise RemoteError(
                "there is no ssh here", node=self.name, hint="apt install openssh-client"
            )
        if not said.ok:
            raise self._error(said.complaint)
        settings = dict(line.partition(" ")[::2] for line in said.output.splitlines())
        return settings.get("controlpath", "none") != "none"

    def _has_connection(self, shared: tuple[str, ...]) -> bool:
        check = ["ssh", *shared, "-O", "check", *self._target]
        return commands.run_command(check, timeout_s=20).ok

    def _error(self, why: str) -> RemoteError:
        return RemoteError(
            why,
            node=self.name,
            hint=f"try it by hand: {shlex.join(['ssh', *self._target, 'true'])}",
        )


def _folder() -> Path:
    """Return the folder of the connections, which nobody else can enter.

    Raises:
        UserError: somebody else can.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "clusterkit", "ssh")
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        folder = Path(f"/tmp/clusterkit-{os.getuid()}")  # noqa: S108 - refused where it is not ours
    files.create_folder(folder)
    require_own(folder, use="keep a connection of ssh there")
    return folder


class Channel:
    """A command of ssh with pipes, to be used like a channel of paramiko."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Start nothing yet."""
        self._argv = argv
        self._timeout: float | None = None
        self._process: Any = None

    def settimeout(self, timeout: float) -> None:
        """Wait so long at most (s) in `send` and `recv`."""
        self._timeout = timeout

    def exec_command(self, command: str) -> None:
        """Start a command there."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            tied([*self._argv, command], signal.SIGTERM),
            stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True,
        )  # fmt: skip
        os.set_blocking(self._process.stdin.fileno(), False)

    def send(self, data: bytes | memoryview) -> int:
        """Send some of the bytes; return how many.

        Raises:
            TimeoutError: none were taken in time.
            OSError: the other side reads no more.
        """
        if not select.select([], [self._process.stdin], [], self._timeout)[1]:
            raise TimeoutError
        return os.write(self._process.stdin.fileno(), data)

    def shutdown_write(self) -> None:
        """Let the other side find the end of its input."""
        self._process.stdin.close()

    def recv_ready(self) -> bool:
        """Tell whether `recv` would return at once."""
        return _is_ready(self._process.stdout, 0)

    def recv(self, size: int) -> bytes:
        """Return what has come; nothing where it was all.

        Raises:
            TimeoutError: nothing came in time.
        """
        if not _is_ready(self._process.stdout, self._timeout):
            raise TimeoutError
        return os.read(self._process.stdout.fileno(), size)

    def recv_stderr_ready(self) -> bool:
        """Tell whether there is anything on standard error."""
        return not self._process.stderr.closed and _is_ready(self._process.stderr, 0)

    def recv_stderr(self, size: int) -> bytes:
        """Return what has come on standard error."""
        data = os.read(self._process.stderr.fileno(), size)
        if not data:
            self._process.stderr.close()
        return data

    def recv_exit_status(self) -> int:
        """Wait for the end of the command, and return its exit code."""
        return int(self._process.wait())

    def close(self) -> None:
        """End the command, where it has not ended."""
        if self._process is not None:
            with suppress(OSError), closing(self._process.stdin):
                pass
            self._process.terminate()
            self._process.wait()


def _is_ready(stream: Any, timeout: float | None) -> bool:
    return bool(select.select([stream], [], [], timeout)[0])
