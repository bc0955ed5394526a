"""Clients on the head of a practice cluster, forked from a process that has imported clusterkit.

Of the 0.3 s of a processor that a client takes, 0.26 are imports. With `pytest --warm-clients` each
process of the tests has a *server* on the head, which imports what clients import once. For each
client it forks a *keeper*, which stands where nsenter does otherwise: it leads a session, forks the
client there, tells how that ended, and kills its process group where the test gives up.

The client has arguments, environment, working folder, `sys.path` and standard streams of its own,
runs as `__main__`, and ends by itself. What differs: in /proc its command line and environment are
the server's, sets are in the server's order, and a module that it forgets to import is there.
So `make test` forks none, and who would notice is executed: `WarmClients.takes`.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import pkgutil
import re
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CLIENT = re.compile(r"clusterkit|tests\.helpers\.\w+")
"""What is run as one."""
_ROOMS = ("cli", "executors", "jobs", "launch", "preflight")
_LOADS_NUMPY = "clusterkit.executors.ssh.function"
"""For a node, whose threads no fork would have."""
_AT_START = re.compile("PYTHON|LANG|LC_|LD_|TZ|MALLOC_|GLIBC_|OPENSSL_")
"""Variables that Python and C read before any import."""
_SAME = re.compile("(?:Umask|SigBlk|SigIgn|Groups|CapEff):.*")
_FREED_S = 10.0


class WarmClients:
    """The server of this process on a living head; it goes when this process goes, or the head."""

    def __init__(
        self,
        start: Callable[[Sequence[str], socket.socket], subprocess.Popen[str]],
        env: Mapping[str, str],
    ) -> None:
        """Have `start` run a command with its standard input, and `env`, on the head.

        Raises:
            RuntimeError: the server did not start; with what it said.
        """
        self._env = env
        self._inherited = _inherited()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = start([sys.executable, "-m", __name__], theirs)
        assert self._server.stdout is not None
        said = self._server.stdout.readline()
        if not said.startswith("["):
            raise RuntimeError(f"no warm clients: {said}{self._server.stdout.read()}")
        self._read: list[str] = json.loads(said)

    def takes(self, argv: Sequence[str], env: Mapping[str, str]) -> bool:
        """Tell whether a client that is forked is the same as one that is executed.

        It is not where another program runs, where what was read before and while modules were
        imported is another value now, or where this process would hand down something else.
        """
        if tuple(argv[:2]) != (sys.executable, "-m") or not _CLIENT.fullmatch(argv[2]):
            return False
        if env.get("PYTHONPATH", str(ROOT)) != str(ROOT) or _inherited() != self._inherited:
            return False
        names = {*self._read, *filter(_AT_START.match, {*env, *self._env})} - {"PYTHONPATH"}
        return all(env.get(name) == self._env.get(name) for name in names)

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a client that `takes` allows, as `Lab.run` does.

        Raises:
            subprocess.TimeoutExpired: it took longer than `timeout_s`, and was killed with all of
                its process group.
            RuntimeError: its keeper went without a word.
        """
        ours, theirs = socket.socketpair()
        out, err = os.pipe(), os.pipe()
        with ours, os.fdopen(out[0], "rb"), os.fdopen(err[0], "rb"):
            with theirs, os.fdopen(out[1], "wb"), os.fdopen(err[1], "wb"):
                socket.send_fds(self._control, [b"."], [out[1], err[1], theirs.fileno()])
            wanted = {"argv": list(argv), "env": dict(env), "cwd": str(cwd)}
            ours.sendall(json.dumps(wanted).encode() + b"\n")
            try:
                code, *said = _read_all(ours.fileno(), out[0], err[0], timeout_s=timeout_s)
            except BaseException as error:
                ours.shutdown(socket.SHUT_WR)
                ours.settimeout(_FREED_S)
                while ours.recv(64):  # until the keeper is killed as well
                    pass
                if isinstance(error, TimeoutError):
                    raise subprocess.TimeoutExpired(list(argv), timeout_s) from None
                raise
            if not code:
                raise RuntimeError(f"the keeper of {list(argv)} is gone")
            ours.sendall(b".")
        texts = [io.TextIOWrapper(io.BytesIO(part)).read() for part in said]
        return subprocess.CompletedProcess(list(argv), int(code), *texts)

    def close(self) -> None:
        """End the server; no client may run."""
        self._control.close()
        with self._server:
            self._server.kill()  # the head may be gone


def _read_all(caller: int, *streams: int, timeout_s: float) -> list[bytes]:
    """Return the one message of a socket, and all that comes through pipes.

    Raises:
        TimeoutError: it took longer.
    """
    deadline = time.monotonic() + timeout_s
    read = {number: bytearray() for number in (caller, *streams)}
    with selectors.DefaultSelector() as waiting:
        for number in read:
            waiting.register(number, selectors.EVENT_READ)
        while waiting.get_map():
            ready = waiting.select(max(0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                raise TimeoutError
            for key, _ in ready:
                part = os.read(key.fd, 1 << 16)
                read[key.fd] += part
                if not part or key.fd == caller:
                    waiting.unregister(key.fd)
    return [bytes(part) for part in read.values()]


def _inherited() -> str:
    """Return what a child of this process has from it beside its environment."""
    status = Path("/proc/self/status").read_text()
    return "\n".join([*_SAME.findall(status), Path("/proc/self/limits").read_text()])


def _import_all() -> set[str]:
    """Import what clients import, and return the variables that were read for it."""
    read = set()
    plain = os._Environ.__getitem__

    def noted(self: os._Environ[str], name: str) -> str:
        read.add(name)
        return plain(self, name)

    os._Environ.__getitem__ = noted  # type: ignore[method-assign, assignment]
    try:
        for room in _ROOMS:
            found = importlib.import_module(f"clusterkit.{room}")
            for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
                if not module.name.endswith("__main__") and module.name != _LOADS_NUMPY:
                    importlib.import_module(module.name)
    finally:
        os._Environ.__getitem__ = plain  # type: ignore[method-assign]
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"a fork has one thread, and not {threads}"
    return read


def serve() -> None:
    """Fork clients as the socket asks that is our standard input; in each of them, run it."""
    print(json.dumps(sorted(_import_all())), flush=True)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    with socket.socket(fileno=os.dup(0)) as control:
        while True:
            _, numbers, *_ = socket.recv_fds(control, 1, 3)
            if not numbers:
                return
            if not os.fork():
                break
            for number in numbers:
                os.close(number)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    out, err, line = numbers
    with socket.socket(fileno=line) as caller:
        with caller.makefile() as words:
            wanted = json.loads(words.readline())
        if pid := os.fork():
            os.close(out)
            os.close(err)
            _keep(pid, caller)
    for number, stream in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(wanted["env"])
    os.chdir(wanted["cwd"])
    interpreter, flag, module, *arguments = wanted["argv"]
    added = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    sys.path[:] = [str(Path.cwd()), *added, *(path for path in sys.path[1:] if path not in added)]
    sys.orig_argv = [interpreter, flag, module, *arguments]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _keep(pid: int, caller: socket.socket) -> None:
    """Tell how a client has ended; kill all of its group once the caller is gone; and exit."""
    ended = os.pidfd_open(pid)
    with selectors.DefaultSelector() as waiting:
        for one in (caller.fileno(), ended):
            waiting.register(one, selectors.EVENT_READ)
        if ended in {key.fd for key, _ in waiting.select()}:
            status = os.waitpid(pid, 0)[1]
            caller.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    if not caller.recv(1):  # no goodbye
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    serve()
