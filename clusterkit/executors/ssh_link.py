"""How the nodes of a job over ssh know of each other: each calls the first one every two seconds.

A call is one short TCP connection with a line of JSON each way; the first node answers on a port of
the job's own. By these calls the nodes begin together, a node that has gone is noticed, and a
failure or a cancellation reaches nodes that share no file system: it is written into the run folder
of each, where the worker looks for it. Nothing here ends anything.

    {"token", "rank", "ended": BOOL, "failure": RESULT|null, "cancelled": BOOL}
    {"port": INT, "go": BOOL, "failure": RESULT|null, "cancelled": BOOL}
"""

from __future__ import annotations

import json
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from clusterkit import files, runfolder
from clusterkit.errors import RemoteError
from clusterkit.executors.allocation import is_free, ports
from clusterkit.executors.ssh_layout import SshLayout
from clusterkit.model import PORT_STRIDE, NodeResult
from clusterkit.runfolder import RunFolder

CALL_EVERY_S = 2.0
_HURRY_S = 0.25
"""Between calls while something is waited for: the start of all, or that an end is heard."""
START_PATIENCE_S = 60.0
"""How long nodes may take to come: Python from a busy shared folder."""
SILENCE_S = 10.0
"""A node that does not call for so long has gone; five seconds without a network are survived."""
_HEAD_SILENCE_S = 13.0
"""Later than the first node gives up on others, so that a cut-off node does not blame it."""
_ANSWER_S = 2.0
_LONGEST = 1 << 16
LOST = 255
"""Exit code of a node that has gone; as ssh's own for a connection that broke."""

_CANDIDATES = 8
"""Ports of the first node that others try; one is taken only by chance."""


class Link:
    """The calls of one node, made or answered by a thread of their own."""

    def __init__(self, run: RunFolder, layout: SshLayout, rank: int) -> None:
        """Know the nodes; nothing is opened yet."""
        self.run = run
        self.layout = layout
        self.rank = rank
        self.port: int | None = None
        """First port of the job; none until the first node has been heard."""
        self.ended = False
        """Whether this node's command has ended."""
        self._go = threading.Event()
        self._close = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin to call."""
        self._thread = threading.Thread(target=self._call_on, daemon=True)
        self._thread.start()

    def await_go(self) -> bool:
        """Wait until all nodes are there; False where the job has ended before."""
        while not self._go.wait(0.2):
            if self.run.cancelled.exists() or self.failure() is not None:
                return False
        return True

    def leave(self) -> None:
        """Say that this node's command has ended, and stop calling once that was heard."""
        self.ended = True
        self._close.set()
        if self._thread is not None and self._go.is_set():
            self._thread.join(START_PATIENCE_S)

    def failure(self) -> NodeResult | None:
        """Return the first failure that is known here."""
        return runfolder.first_failure(self.run, self.layout.attempt)

    def adopt(self, heard: Mapping[str, Any]) -> None:
        """Write down a failure or a cancellation that another node knows of."""
        if heard.get("cancelled"):
            files.create_text(self.run.cancelled, "")
        failure = runfolder.result_of(heard.get("failure"))
        if failure is not None:
            self.blame(failure)

    def blame(self, failure: NodeResult) -> None:
        """Write down the first failure, unless there is one."""
        runfolder.note_failure(
            self.run, failure, attempt=self.layout.attempt, of=len(self.layout.names)
        )

    def lost(self, rank: int, words: str) -> NodeResult:
        """Return the result of a node that has gone."""
        now = time.time()
        return NodeResult(
            node_rank=rank,
            node=self.layout.names[rank],
            exit_code=LOST,
            started_at=now,
            ended_at=now,
            lost=words,
        )

    def said(self) -> dict[str, Any]:
        """Return what is known here, as it is told to others."""
        failure = self.failure()
        return {
            "failure": files.plain(failure) if failure is not None else None,
            "cancelled": self.run.cancelled.exists(),
        }

    def _call_on(self) -> None:
        """Call the first node until this node's end was heard there, or it has gone."""
        heard_at = time.monotonic()
        patience = START_PATIENCE_S
        while True:
            ending = self._close.is_set()
            answer = self._call()
            now = time.monotonic()
            if answer is not None:
                heard_at = now
                self.adopt(answer)
                if answer.get("go"):
                    patience = _HEAD_SILENCE_S
                    self._go.set()
                if ending:
                    return
            elif now - heard_at >= patience:
                why = "no longer answers" if self._go.is_set() else "never answered"
                if not ending:
                    self.blame(self.lost(0, f"{why} (asked by {self.layout.names[self.rank]})"))
                return
            if ending:
                time.sleep(_HURRY_S)
            else:
                self._close.wait(CALL_EVERY_S if self._go.is_set() else _HURRY_S)

    def _call(self) -> dict[str, Any] | None:
        message = {
            "token": self.layout.token,
            "rank": self.rank,
            "ended": self.ended,
            **self.said(),
        }
        line = json.dumps(message).encode() + b"\n"
        for port in (self.port,) if self.port is not None else _candidates(self.layout):
            answer = _exchange(self.layout.names[0], _link_port(port), line)
            if answer is not None:
                self.port = port
                return answer
        return None


class Hub(Link):
    """The first node's side: it answers, and notices who does not call any more."""

    def __init__(self, run: RunFolder, layout: SshLayout) -> None:
        """Know the nodes; nothing is opened yet."""
        super().__init__(run, layout, 0)
        self._heard_at: dict[int, float] = {}
        self._over: set[int] = set()
        self._began = time.monotonic()

    def begin(self) -> None:
        """Listen on a free group of ports, and begin to answer.

        Raises:
            RemoteError: there is none.
        """
        hub = self

        class Handler(socketserver.StreamRequestHandler):
            timeout = _ANSWER_S

            def handle(self) -> None:
                with suppress(OSError, ValueError, KeyError, TypeError):
                    heard = json.loads(self.rfile.readline(_LONGEST))
                    if secrets.compare_digest(str(heard["token"]), hub.layout.token):
                        self.wfile.write(json.dumps(hub.answer(heard)).encode() + b"\n")

        for port in _candidates(self.layout):
            if not is_free("", port):
                continue
            try:
                server = _Server(("", _link_port(port)), Handler)
            except OSError:
                continue
            self.port = port
            threading.Thread(target=server.serve_forever, daemon=True).start()
            break
        else:
            low, high = self.layout.ports
            raise RemoteError(
                f"no free port in {low}-{high}",
                node=self.layout.names[0],
                hint="set `port_range` to another range",
            )
        super().begin()

    def answer(self, heard: Mapping[str, Any]) -> dict[str, Any]:
        """Note who calls, and return what is known here."""
        rank = int(heard["rank"])
        self._heard_at[rank] = time.monotonic()
        if heard.get("ended"):
            self._over.add(rank)
        self.adopt(heard)
        return {"port": self.port, "go": self._go.is_set(), **self.said()}

    def _call_on(self) -> None:
        others = set(range(1, self.layout.tasks))
        while True:
            now = time.monotonic()
            if others <= self._heard_at.keys():
                self._go.set()
            late = (
                {r for r in others if now - self._heard_at[r] >= SILENCE_S}
                if self._go.is_set()
                else {r for r in others - self._heard_at.keys() if self._waited_too_long(now)}
            ) - self._over
            for rank in sorted(late):
                self._over.add(rank)
                why = "no longer answers" if self._go.is_set() else "never started"
                self.blame(self.lost(rank, why))
            if self._close.is_set() and others <= self._over:
                return
            time.sleep(0.2)

    def _waited_too_long(self, now: float) -> bool:
        return self._close.is_set() or now - self._began >= START_PATIENCE_S


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128


def _candidates(layout: SshLayout) -> tuple[int, ...]:
    low, high = layout.ports
    return tuple(islice(ports(low, high, seed=layout.job_id), _CANDIDATES))


def _link_port(port: int) -> int:
    return port + PORT_STRIDE - 1


def _exchange(host: str, port: int, line: bytes) -> dict[str, Any] | None:
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_S) as connection:
            connection.sendall(line)
            with connection.makefile("rb") as stream:
                answer = json.loads(stream.readline(_LONGEST))
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) and "go" in answer else None
