"""Into a running job: a command on one of its nodes, on all of them, and ways to ports there.

What is run has the variables, the folder and the container of the job's launcher on that node
(`templates/programs/machine/enter.sh`), and ends with the job, whose marker it carries.
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from clusterkit.core import files
from clusterkit.core.data import read_template
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import ContainerRuntime
from clusterkit.core.records import object_of, text_of
from clusterkit.executors.slurm.states import components_of
from clusterkit.executors.ssh.layout import read_layout
from clusterkit.jobs.node_names import choose_node
from clusterkit.jobs.nodes import Subject, agents_at_work, het_group, of_job, require_running
from clusterkit.jobs.state.load import Job, load_job
from clusterkit.preflight.hosts import LOCALHOST
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import PreflightJob, Probe
from clusterkit.transport.process import run_attached, tied
from clusterkit.transport.script import compose, new_token
from clusterkit.transport.srun import attached_argv, step_environment

_RELAY = """
exec 3<>"/dev/tcp/localhost/$1" || exit 1
cat <&3 & cat >&3 <&0 & wait %1; kill %2 2>/dev/null
"""
"""Joins a step's input and output with a port, for bash."""
_LISTENS = """
port=$(printf %04X "$1")
grep -qs ":$port [0-9A-F]*:0000 0A " /proc/net/tcp /proc/net/tcp6 && exit
echo "Connection refused" >&2; exit 1
"""
"""Looks at listening sockets (state 0A): a debugger may take one connection, and no other."""
_PIECE = 1 << 15
_MOST_CONNECTIONS = 64
"""At a time; on Slurm each of them is a step."""
_PROBE = "run"
_TIMED_OUT = frozenset({124, 137})
"""Exit codes of timeout(1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a command did on one node."""

    node: str
    exit_code: int | None = None
    """None where it did not end, or was not started."""
    output: str = ""
    """What it printed to both streams."""
    problem: str = ""
    """Why there is no exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One node of a running job."""

    job: Job
    node: str
    """As it is reached."""
    rank: int | None
    """Its number in the job; None where it was named instead."""
    runtime: str
    """Of the container that its launcher runs in; empty without one."""
    options: tuple[str, ...] = ()
    """What srun needs for a step there, beside the job and the node."""


def place_in(job: Job, node: str | None) -> Place:
    """Return a node of a running job: by its number, its name, or the first.

    Raises:
        UserError: the job does not run, is somebody else's, or has no such node.
        RemoteError: Slurm does not say which nodes it has.
    """
    job.run.require_own("run anything inside it")
    require_running(job)
    components = components_of(job.submission.job_id or "") if job.submission.kind.scheduled else ()
    names = _names_of(job, components)
    options = {
        name: het_group(number, components)
        for number, nodes in enumerate(components)
        for name in nodes
    }
    rank, name = choose_node("0" if node is None else node, names)
    runtime = _runtime_of(job)
    return Place(job=job, node=name, rank=rank, runtime=runtime, options=options.get(name, ()))


def _names_of(job: Job, components: Sequence[Sequence[str]]) -> dict[int, str]:
    """Return the nodes of a job by number: on Slurm in Slurm's order, which `enter.sh` verifies."""
    kind = job.submission.kind
    if kind.shares_machine:
        return dict.fromkeys(range(job.submission.nodes), LOCALHOST)
    if kind.lists_hosts:
        return agents_at_work(job.run)
    return dict(enumerate(name for nodes in components for name in nodes))


def _runtime_of(job: Job) -> str:
    plan = files.read_json(job.run.plan) or {}
    runtime = text_of(object_of(plan, "container"), "runtime")
    return runtime if runtime in set(ContainerRuntime) else ""


def _entering(
    job: Job, command: Sequence[str], *, rank: int | None = None, node: str = "", runtime: str
) -> list[str]:
    """Return the command that runs `command` as a process of the job."""
    program = read_template("programs/machine/enter.sh")
    return ["bash", "-c", program, "clusterkit", job.run.marker(rank), node, runtime, *command]


def run_inside(place: Place, command: Sequence[str], *, terminal: bool = False) -> int:
    """Run a command on a node of a job, with this process's streams; return its exit code.

    Raises:
        UserError: ssh's configuration cannot be read.
        RemoteError: the node cannot be reached, or srun is missing.
    """
    node = place.node if place.rank is None else ""
    words = _entering(place.job, command, rank=place.rank, node=node, runtime=place.runtime)
    kind = place.job.submission.kind
    if kind.lists_hosts:
        with closing(_login(place)) as login:
            code: int = login.run(shlex.join(["exec", *words]), terminal=terminal)
            return code
    if kind.shares_machine:
        return run_attached(words)
    argv = _attached(place, words, terminal=terminal)
    try:
        return run_attached(argv, environment=step_environment(os.environ))
    except FileNotFoundError as error:
        raise RemoteError(
            "there is no srun here", hint="log in where Slurm's commands are"
        ) from error


def _login(place: Place) -> Any:
    from clusterkit.transport.ssh.attach import Login  # noqa: PLC0415 - paramiko takes its time
    from clusterkit.transport.ssh.config import SshOptions  # noqa: PLC0415

    return Login(place.node, SshOptions.of(read_layout(place.job.run).cluster))


def _attached(
    place: Place, words: Sequence[str], *more: str, terminal: bool = False
) -> tuple[str, ...]:
    job_id = place.job.submission.job_id or ""
    return attached_argv(place.node, job_id, words, *place.options, *more, terminal=terminal)


def run_on_all(job: Job, command: Sequence[str], *, timeout_s: float) -> tuple[Said, ...]:
    """Run a command on all nodes of a running job at once, without input.

    Raises:
        UserError: the job does not run, or is somebody else's.
        RemoteError: its nodes cannot be asked at all.
    """
    job.run.require_own("run anything inside it")
    words = _entering(job, command, runtime=_runtime_of(job))
    return run_on(of_job(job, None), words, timeout_s=timeout_s)


def run_on(subject: Subject, command: Sequence[str], *, timeout_s: float) -> tuple[Said, ...]:
    """Run a command on nodes at once, without input; return what each said, in order.

    Raises:
        RemoteError: they cannot be asked at all.
    """
    snippet = f"{shlex.join(command)} 2>&1"
    probe = Probe(name=_PROBE, command=snippet, parse=str, timeout_s=timeout_s)
    found = [Said(node=node, problem=subject.why_unasked) for node in subject.unasked]
    for part in subject.parts:
        compound = compose([probe], PreflightJob(hosts=part.nodes), token=new_token())
        try:
            replies = part.transport.ask(part.nodes, compound, on_reply=lambda _: None)
        finally:
            part.close()
        found += [_said(reply, timeout_s) for reply in replies]
    return tuple(found)


def _said(reply: Reply, timeout_s: float) -> Said:
    output = reply.outputs.get(_PROBE)
    if output is None:
        return Said(node=reply.node, problem=reply.reach.detail or "it was not started")
    if output.exit_code is None or (output.exit_code in _TIMED_OUT and output.seconds >= timeout_s):
        ended = reply.reach.detail or f"it had not ended after {timeout_s:g} s"
        return Said(node=reply.node, output=output.stdout, problem=ended)
    return Said(node=reply.node, output=output.stdout, exit_code=output.exit_code)


def listens_here(port: int) -> bool:
    """Tell whether somebody listens on a port of this machine, without connecting to it."""
    words = ["sh", "-c", _LISTENS, "sh", str(port)]
    return subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0


class Forward:
    """A port of this machine's loopback that leads to one of a node."""

    def __init__(self, place: Place, port: int, *, local: int, told: Callable[[str], None]) -> None:
        """Listen; `told` gets what goes wrong with a connection.

        Raises:
            UserError: the port of this machine is in use.
            RemoteError: the node cannot be reached.
        """
        self._port = port
        self._told = told
        self._turns = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._place = place
        try:
            self._listener = socket.create_server(("127.0.0.1", local))
        except OSError as error:
            raise UserError(
                f"port {local} of this machine: {os.strerror(error.errno or errno.EADDRINUSE)}",
                hint=f"take another one here, such as {local + 1}:{port}; 0:{port} takes any",
            ) from error
        self.local: int = self._listener.getsockname()[1]
        self._login = _login(place) if place.job.submission.kind.lists_hosts else None

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()
        if self._login is not None:
            self._login.close()

    def serve(self) -> None:
        """Join each connection with one to the node, until Ctrl-C.

        Raises:
            UserError: the job is over, as a connection that failed has shown.
        """
        threading.Thread(target=self._try, daemon=True).start()
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                require_running(load_job(self._place.job.run))
                raise
            self._turns.acquire()
            threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _try(self) -> None:
        """Tell of nobody who listens there before somebody wonders at an empty page."""
        try:
            if self._login is not None:
                self._login.reach(self._port).close()
            else:
                self._step(_LISTENS, subprocess.DEVNULL)
        except (RemoteError, OSError) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Tell what went wrong, or end `serve` where that is because the job is over."""
        if load_job(self._place.job.run).status.state.final:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
        else:
            self._told(str(error))

    def _join(self, near: socket.socket) -> None:
        try:
            with near:
                self._carry(near)
        except (RemoteError, OSError) as error:
            self._failed(error)
        finally:
            self._turns.release()

    def _carry(self, near: socket.socket) -> None:
        if self._login is not None:
            with closing(self._login.reach(self._port)) as far:
                _carry_both(near, far)
            return
        self._step(_RELAY, near.fileno())

    def _step(self, script: str, stream: int) -> None:
        words = ("bash", "-c", script, "clusterkit", str(self._port))
        # Else Slurm keeps what ends in no newline until one follows, and messages of debuggers and
        # of notebooks end in none. Its price, a terminal as standard output, changes no byte.
        argv = _attached(self._place, words, "--unbuffered")
        done = subprocess.run(
            tied(argv, signal.SIGTERM),
            stdin=stream,
            stdout=stream,
            stderr=subprocess.PIPE,
            env=step_environment(os.environ),
            check=False,
        )
        if done.returncode:
            text = done.stderr.decode(errors="replace").strip()
            refused = "Connection refused" in text
            # srun warns of other things before.
            said = next((line for line in text.split("\n") if "error: " in line), text)
            why = "nothing listens there" if refused else said.split("\n")[0]
            raise RemoteError(f"port {self._port}: {why}", node=self._place.node)


def _carry_both(near: socket.socket, far: Any) -> None:
    def back() -> None:
        with suppress(OSError):
            _carry_on(far, near)

    listener = threading.Thread(target=back, daemon=True)
    listener.start()
    with suppress(OSError):
        _carry_on(near, far)
    listener.join()


def _carry_on(source: Any, target: Any) -> None:
    """Hand on what comes until it ends, and that it has."""
    while data := source.recv(_PIECE):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)
