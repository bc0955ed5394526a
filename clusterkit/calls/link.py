"""How the nodes of a job know of each other: each calls the first one every two seconds.

A call is a question and its answer by the protocol of `core/peers.py`; the first node answers on a
port of the job's own. By these calls a node that has gone is noticed; where no scheduler starts the
nodes, they also begin together, and a failure or a cancellation reaches nodes that share no file
system.

    {"ended": BOOL, NEWS}
    {"port": INT, "go": BOOL, NEWS}

NEWS is `"failure": RESULT|null, "cancelled": BOOL, "gone": [RESULT...]`, the last of elastic jobs.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from clusterkit import node_results
from clusterkit.calls.clock import LivedClock
from clusterkit.calls.news import News
from clusterkit.core import peers
from clusterkit.core.peers import Connection, Listener, Member, PeerError
from clusterkit.errors import RemoteError
from clusterkit.model import PORT_STRIDE, NodeResult
from clusterkit.ports import is_group_free

CALL_EVERY_S = 2.0
_HURRY_S = 0.25
"""Between calls while something is waited for: the start of all, or that an end is heard."""
START_PATIENCE_S = 60.0
"""How long after the last newcomer others may still come: Python from a busy shared folder."""
SILENCE_S = 10.0
"""A node that does not call for so long has gone; five seconds without a network are survived."""
_HEAD_SILENCE_S = 13.0
"""Later than the first node gives up on others, so that a cut-off node does not blame it."""
_ANSWER_S = 2.0
_KEEP_UP_TO = 512
"""Nodes that keep their connections to the first one, which no flood then keeps out; it has a
descriptor for each, of the usual 1,024."""
_FORGET_S = 60.0
"""After so long a silence a connection is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """The nodes that call each other, in rank order."""

    names: tuple[str, ...]
    tasks: int
    """How many of them call: all, or the first alone where its command reaches the others."""
    least: int | None = None
    """How many are enough for the job to go on; None where all are needed."""
    ports: tuple[int, ...]
    """Where each group of `PORT_STRIDE` ports begins that the first node tries, in its order."""
    token: str
    gathers: bool = True
    """Whether nodes wait for each other at the beginning and at the end.

    Where a scheduler starts them, they do not, and calls that do not get through (a firewall
    between the nodes) are no reason to end a job.
    """

    def lost(self, rank: int, words: str) -> NodeResult:
        """Return the result of a node that has gone."""
        return node_results.lost(rank, self.names[rank], words)


class Link:
    """The calls of one node, made by a thread of their own."""

    def __init__(self, circle: Circle, rank: int, news: News) -> None:
        """Know the nodes; nothing is opened yet."""
        self.circle = circle
        self.rank = rank
        self.news = news
        self.port: int | None = None
        """First port of the job; none until the first node has been heard."""
        self.ended = False
        """Whether this node's command has ended."""
        self.trouble = ""
        """Why the last call went wrong."""
        self._clock = LivedClock()
        self._go = threading.Event()
        self._close = threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._is_short = False
        """Whether the last call went wrong for want of something on this machine."""
        self._member = Member(
            token=circle.token,
            rank=rank,
            of=len(circle.names),
            attempt=news.attempt,
            purpose="calls",
        )

    def begin(self) -> None:
        """Begin to call."""
        self._clock.begin()
        self._thread = threading.Thread(target=self._call_on, daemon=True)
        self._thread.start()

    def await_go(self) -> bool:
        """Wait until all nodes are there; False where the job has ended before, or is told to."""
        while not self._go.wait(0.2):
            if is_told_to_end() or self.news.cancelled or self.news.failure is not None:
                return False
        return True

    def await_answer(self, timeout_s: float) -> None:
        """Wait for the first answer, but no longer than this."""
        self._go.wait(timeout_s)

    def leave(self) -> None:
        """Say that this node's command has ended; where nodes gather, once that was heard."""
        self.ended = True
        self._close.set()
        if self._thread is not None and self._go.is_set() and self.circle.gathers:
            self._thread.join()

    def _call_on(self) -> None:
        """Call the first node until this node's end was heard there, or it has gone."""
        heard_at = called_at = self._clock.now()
        while True:
            ending = self._close.is_set()
            answer = self._call()
            now = self._clock.now()
            if self._is_short:
                heard_at += now - called_at
            called_at = now
            gone = _HEAD_SILENCE_S if self._go.is_set() else START_PATIENCE_S
            if answer is not None:
                heard_at = now
                if answer.get("go") is True:
                    self._go.set()
                if ending:
                    return
            elif now - heard_at >= gone:
                if not ending:
                    self._miss_the_head()
                return
            if ending:
                time.sleep(_HURRY_S)
            else:
                self._close.wait(CALL_EVERY_S if self._go.is_set() else _HURRY_S)

    def _miss_the_head(self) -> None:
        if not self.circle.gathers and (not self._go.is_set() or self._has_ended(0)):
            return
        why = "no longer answers" if self._go.is_set() else "never answered"
        asked_by = self.circle.names[self.rank]
        trouble = f": {self.trouble}" if self.trouble else ""
        head = self.circle.lost(0, f"{why} (asked by {asked_by}{trouble})")
        self.news.lose_touch(head, me=self.rank)

    def _has_ended(self, rank: int) -> bool:
        """Tell whether a node's result is in the folder that all of them share."""
        return node_results.has_result(self.news.run, rank, self.news.attempt)

    def _call(self) -> dict[str, Any] | None:
        question = peers.shortened({"ended": self.ended, **self.news.told()})
        self._is_short = False
        for port in (self.port,) if self.port is not None else self.circle.ports:
            try:
                answer = self._exchange(_link_port(port), question)
                self.news.hear(answer)
            except OSError as error:
                self.trouble = error.strerror or str(error)
                self._is_short = self._is_short or peers.is_shortage(error)
                self._hang_up()
                continue
            self.port = port
            return answer
        return None

    def _exchange(self, port: int, question: Mapping[str, Any]) -> dict[str, Any]:
        head = (self.circle.names[0], port)
        if self._connection is None:
            self._connection = peers.connect(head, self._member, timeout_s=_ANSWER_S)
        self._connection.send(question, within_s=_ANSWER_S)
        answer = self._connection.receive(_ANSWER_S, _ANSWER_S)
        if len(self.circle.names) > _KEEP_UP_TO:
            self._hang_up()
        return answer

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Hub(Link):
    """The first node's side: it answers, and notices who does not call any more."""

    def __init__(self, circle: Circle, news: News) -> None:
        """Know the nodes; nothing is opened yet."""
        super().__init__(circle, 0, news)
        self._listener: Listener | None = None
        self._heard_at: dict[int, float] = {}
        self._over: set[int] = set()
        self._newcomer_at = self._now()
        if not circle.gathers:
            self._go.set()

    def begin(self) -> None:
        """Listen on a free group of ports, and begin to answer.

        Raises:
            RemoteError: there is none.
        """
        for port in self.circle.ports:
            if not self.circle.gathers or is_group_free(port):  # else it is the job's own
                with suppress(OSError):
                    self._listener = Listener(("", _link_port(port)), self._member, self._serve)
                    self.port = port
                    super().begin()
                    return
        tried = ", ".join(str(port) for port in self.circle.ports)
        raise RemoteError(
            f"none of the ports {tried} is free",
            node=self.circle.names[0],
            hint="set `port_range` to another range",
        )

    def answer(self, rank: int, heard: Mapping[str, Any]) -> dict[str, Any]:
        """Note who calls, and return what is known here.

        Raises:
            PeerError: nobody who calls is of this rank, or what it says is no news.
        """
        if not 0 < rank < self.circle.tasks:
            raise PeerError("is not among those who call")
        now = self._now()
        if rank not in self._heard_at:
            self._newcomer_at = now
        self._heard_at[rank] = now
        if heard.get("ended") is True:
            self._over.add(rank)
        self.news.hear(heard)
        return {"port": self.port, "go": self._go.is_set(), **self.news.told()}

    def _serve(self, connection: Connection) -> None:
        for heard in connection.messages(_FORGET_S):
            connection.send(peers.shortened(self.answer(connection.rank, heard)))

    def _now(self) -> float:
        """Return the time of a clock that stands still while nobody can be heard here."""
        unable_s = self._listener.unable_s() if self._listener is not None else 0.0
        return self._clock.now() - unable_s

    def _call_on(self) -> None:
        others = set(range(1, self.circle.tasks))
        while not (self._close.is_set() and (others <= self._over or not self.circle.gathers)):
            if others - self._over <= self._heard_at.keys():
                self._go.set()
            self._miss(others)
            time.sleep(0.2)

    def _miss(self, others: set[int]) -> None:
        now = self._now()
        if self._go.is_set():
            called = others & self._heard_at.keys()
            late = {rank for rank in called if now - self._heard_at[rank] >= SILENCE_S}
            why = "no longer answers"
        else:
            waited = self._close.is_set() or now - self._newcomer_at >= START_PATIENCE_S
            late = others - self._heard_at.keys() if waited else set()
            why = "never started"
        late -= self._over
        if not self.circle.gathers:
            self._over |= {rank for rank in late if self._has_ended(rank)}
            late -= self._over
        fixed = self.circle.least is None
        if fixed and len(late) > 1 and self._go.is_set() and late == others - self._over:
            # All at once: it is this node that nobody can reach.
            self.news.blame(self.circle.lost(0, "has lost its network"))
        for rank in sorted(late):
            self.news.blame(self.circle.lost(rank, why))
        self._over |= late


def join(circle: Circle, rank: int, news: News) -> Link:
    """Return the part of one node: the first answers, the others call."""
    return Link(circle, rank, news) if rank else Hub(circle, news)


def is_told_to_end() -> bool:
    """Tell whether a signal that ends this process waits to be fetched."""
    return bool({signal.SIGTERM, signal.SIGINT} & signal.sigpending())


def _link_port(port: int) -> int:
    return port + PORT_STRIDE - 1
