"""How the nodes of a job know of each other: each calls the first one every two seconds.

A call is a question and its answer by the protocol of `core/peers.py`; the first node answers on a
port of the job's own. By these calls a node that has gone is noticed; where no scheduler starts the
nodes, they also begin together, and a failure or a cancellation reaches nodes that share no file
system.

    {"ended": BOOL, "met": [RANK...], NEWS}
    {"port": INT, "go": BOOL, "head_s": NUMBER, NEWS}

A node that no longer hears the first one asks some others in the same way (`partition.py`), who
say how long ago they have heard it, and tell it whom they have `met` so. NEWS is `"failure":
RESULT|null, "cancelled": BOOL, "gone": [RESULT...]`, the last of elastic jobs.
"""

from __future__ import annotations

import signal
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from clusterkit.core import peers
from clusterkit.core.model import PORT_STRIDE, NodeResult
from clusterkit.core.peers import Connection, Listener, Member, PeerError
from clusterkit.core.timing import scaled
from clusterkit.executors.node.partition import (
    GONE,
    PeerState,
    Views,
    Witnesses,
    lost_each_other,
    refuses,
    who_has_gone,
)
from clusterkit.executors.run import node_results

CALL_EVERY_S = scaled(2.0, 0.5)
_HURRY_S = 0.25
"""Between calls while something is waited for: the start of all, or that an end is heard."""
START_TIMEOUT_S = 60.0
"""How long after the last newcomer others may still come: Python from a busy shared folder."""
SILENCE_S = scaled(10.0, 4.0)
"""A node that does not call for so long has gone; five seconds without a network are survived."""
HEAD_SILENCE_S = scaled(13.0, 5.2)
"""Later than the first node gives up on others, which knows more of them."""
DOUBT_S = scaled(5.0, 2.0)
"""After so long a silence others are asked, and a node is none that is heard."""
_ANSWER_S = 2.0
_KEEP_UP_TO = 512
"""Nodes that keep their connections to the first one, which no flood then keeps out; it has a
descriptor for each, of the usual 1,024."""
_FORGET_S = 60.0
"""After so long a silence a connection is closed."""


class PeerConnection:
    """The calls of one node, made by a thread of their own."""

    def __init__(
        self, rank: int, peer_state: PeerState, ports: Sequence[int], *, gathers: bool = True
    ) -> None:
        """Know the nodes; nothing is opened yet.

        Args:
            rank: Of this node.
            peer_state: What it knows of the others.
            ports: Where each group of `PORT_STRIDE` ports begins that the first node tries.
            gathers: Whether nodes wait for each other at the beginning and at the end. Where a
                scheduler starts them, they do not, and calls that do not get through (a firewall
                between the nodes) are no reason to end a job.
        """
        self.nodes = nodes = peer_state.nodes
        self.rank = rank
        self.ports = ports
        self.gathers = gathers
        self.peer_state = peer_state
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
        self._listener: Listener | None = None
        self._heard_at = self._clock.now()
        """When the first node was heard last."""
        self._met: dict[int, float] = {}
        """Who no longer hears the first node, and has said so here, and when."""
        self._is_short = False
        """Whether the last call went wrong because this machine lacks something."""
        self._member = Member(
            token=nodes.token,
            rank=rank,
            of=len(nodes.names),
            attempt=nodes.attempt,
            purpose="calls",
        )
        self._witnesses = Witnesses(nodes.names, nodes.tasks, self._member)

    def begin(self) -> None:
        """Begin to call."""
        self._clock.begin()
        self._thread = threading.Thread(target=self._call_on, daemon=True)
        self._thread.start()

    def await_go(self) -> bool:
        """Wait until all nodes are there; False where the job has ended before, or is told to."""
        while not self._go.wait(0.2):
            if is_told_to_end() or self.peer_state.cancelled or self.peer_state.failure is not None:
                return False
        return True

    def await_answer(self, timeout_s: float) -> None:
        """Wait for the first answer, but no longer than this."""
        self._go.wait(timeout_s)

    def leave(self) -> None:
        """Say that this node's command has ended; where nodes gather, once that was heard."""
        self.ended = True
        self._close.set()
        if self._thread is not None and self._go.is_set() and self.gathers:
            self._thread.join()
        if self.rank and self._listener is not None:
            self._listener.close()

    def answer(self, rank: int, message: Mapping[str, Any]) -> dict[str, Any]:
        """Note who calls, and return what is known here.

        Raises:
            PeerError: nobody who calls is of this rank, or what it says is no news.
        """
        if not 0 < rank < self.nodes.tasks:
            raise PeerError("is not among those who call")
        if message.get("doubts") is True:
            self._met[rank] = self._now()
        self.peer_state.hear(message)
        # By the clock of `_heard_at`: who cannot be called here may still hear the first node.
        head_s = max(0.0, self._clock.now() - self._heard_at) if self.rank else 0.0
        return {
            "port": self.port,
            "go": self._go.is_set(),
            "head_s": head_s,
            **self.peer_state.told(),
        }

    def _serve(self, connection: Connection) -> None:
        for message in connection.messages(_FORGET_S):
            connection.send(peers.shortened(self.answer(connection.rank, message)))

    def _listen(self, port: int) -> None:
        self._listener = Listener(("", peers_port(port)), self._member, self._serve)

    def _now(self) -> float:
        """Return the time of a clock that stands still while nobody can be heard here."""
        unable_s = self._listener.unable_s() if self._listener is not None else 0.0
        return self._clock.now() - unable_s

    def _call_on(self) -> None:
        """Call the first node until this node's end was heard there, or it has gone."""
        called_at = self._heard_at
        views = Views()
        while True:
            ending = self._close.is_set()
            answer = self._call()
            now = self._clock.now()
            if self._is_short:
                self._heard_at += now - called_at
            called_at = now
            silent_s = now - self._heard_at
            if answer is not None:
                self._heard_at = now
                if ending:
                    return
                if answer.get("go") is True and not self._go.is_set():
                    self._begin_well()
            elif silent_s >= (HEAD_SILENCE_S if self._go.is_set() else START_TIMEOUT_S) and (
                ending or self._miss_the_head(views, silent_s)
            ):
                return
            doubts = answer is None and self._go.is_set() and silent_s >= DOUBT_S
            if doubts and not ending:
                views = self._ask_witnesses()
            if ending:
                time.sleep(_HURRY_S)
            else:
                calm = self._go.is_set() and not doubts
                self._close.wait(CALL_EVERY_S if calm else _HURRY_S)

    def _begin_well(self) -> None:
        """Let the node begin; from now on others can ask it, and it can ask them."""
        self._go.set()
        if self.port is not None:
            with suppress(OSError):  # without it, others see no more than that the machine answers
                self._listen(self.port)
            self._witnesses.note_reached(peers_port(self.port))

    def _ask_witnesses(self) -> Views:
        question = peers.shortened({"doubts": True, **self.peer_state.told()})
        port = self.port if self.port is not None else self.ports[0]
        return self._witnesses.ask(peers_port(port), question, self.peer_state.hear)

    def _miss_the_head(self, views: Views, silent_s: float) -> bool:
        """Tell who has gone, as the first node is silent; False where others still hear it."""
        if self.peer_state.failure is not None:
            return True
        if not self.gathers and (not self._go.is_set() or self._has_ended(0)):
            return True
        names = self.nodes.names
        error = f": {self.trouble}" if self.trouble else ""
        if not self._go.is_set():
            why = f"never answered (asked by {names[self.rank]}{error})"
        elif self.nodes.least is not None:  # whose first node is the one it cannot do without
            why = f"{GONE} (asked by {names[self.rank]}{error})"
        elif views.head_s is not None and views.head_s < DOUBT_S:
            if silent_s < 2 * HEAD_SILENCE_S:
                return False  # it will say itself what it makes of this node, through the others
            self.peer_state.note_failure(lost_each_other(names, {0}, {self.rank}))
            return True
        else:
            for result in self._gone(views):
                self.peer_state.note_failure(result)
            return True
        self.peer_state.lose_touch(self.nodes.lost(0, why), me=self.rank)
        return True

    def _gone(self, views: Views) -> tuple[NodeResult, ...]:
        """Return who is to blame that the first node is silent."""
        names = self.nodes.names
        if self.port is not None and refuses((names[0], peers_port(self.port)), self._member, 0):
            return (self.nodes.lost(0, GONE),)
        here, there = {self.rank, *views.reached}, {0, *views.unreached}
        if not views.reached and not views.unreached:
            there = {0}
        return who_has_gone(names, self.rank, here, there)

    def _has_ended(self, rank: int) -> bool:
        """Tell whether a node's result is in the folder that all of them share."""
        return node_results.has_result(self.peer_state.run, rank, self.nodes.attempt)

    def _call(self) -> dict[str, Any] | None:
        met = [rank for rank, at in list(self._met.items()) if self._now() - at < SILENCE_S]
        question = peers.shortened({"ended": self.ended, "met": met, **self.peer_state.told()})
        self._is_short = False
        for port in (self.port,) if self.port is not None else self.ports:
            try:
                answer = self._exchange(peers_port(port), question)
                self.peer_state.hear(answer)
            except OSError as error:
                self.trouble = error.strerror or str(error)
                self._is_short = self._is_short or peers.is_shortage(error)
                self._hang_up()
                continue
            self.port = port
            return answer
        return None

    def _exchange(self, port: int, question: Mapping[str, Any]) -> dict[str, Any]:
        head = (self.nodes.names[0], port)
        if self._connection is None:
            self._connection = peers.connect(head, self._member, timeout_s=_ANSWER_S)
        self._connection.send(question, within_s=_ANSWER_S)
        answer = self._connection.receive(_ANSWER_S, _ANSWER_S)
        if len(self.nodes.names) > _KEEP_UP_TO:
            self._hang_up()
        return answer

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def is_told_to_end() -> bool:
    """Tell whether a signal that ends this process waits to be fetched."""
    return bool({signal.SIGTERM, signal.SIGINT} & signal.sigpending())


def peers_port(port: int) -> int:
    """Return the port of the calls, of a group of ports of a job."""
    return port + PORT_STRIDE - 1


_TICK_S = 0.5
_STOPPED_S = scaled(4.0, 1.6)
"""Who was asleep for so long between two ticks was stopped, and its job with it."""


class LivedClock:
    """Seconds that this process has lived through.

    A job that is suspended (gang scheduling, `scontrol suspend`) hears nothing for hours, and yet
    no node of it has gone.
    """

    def __init__(self) -> None:
        """Stand at the time of the monotonic clock."""
        self._lock = threading.Lock()
        self._looked_at = time.monotonic()
        self._stopped_s = 0.0

    def begin(self) -> None:
        """Look at the time now and then, in a thread that ends with the clock."""
        threading.Thread(target=_tick, args=(weakref.ref(self),), daemon=True).start()

    def now(self) -> float:
        """Return the time, in seconds; only differences mean something."""
        with self._lock:
            now = time.monotonic()
            asleep = now - self._looked_at
            if asleep >= _STOPPED_S:
                self._stopped_s += asleep
            self._looked_at = now
            return now - self._stopped_s


def _tick(clock: weakref.ref[LivedClock]) -> None:
    while (there := clock()) is not None:
        there.now()
        del there
        time.sleep(_TICK_S)
