"""Visit many nodes at once, and wait for none of them longer than it may take.

Threads cannot be interrupted, and some calls (a name look-up, an agent that does not answer) have
no time-out. So a visit says until when it may last; one that is late is cut (its socket is closed,
which ends most waits), and one that still does not end is left behind: its thread is a daemon.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_TICK_S = 0.25
_GRACE_S = 1.5
"""Between the cut and giving up on the thread."""


class Visit(Protocol[T_co]):
    """One node, and how it is asked."""

    deadline: float | None
    """By `time.monotonic`; None while it waits for its turn."""

    def run(self) -> T_co:
        """Ask the node. What goes wrong there is in what is returned."""

    def cut(self) -> None:
        """End `run` soon, from another thread; never blocks."""

    def late(self) -> T_co:
        """Return what is said of a visit that has not ended although it was cut."""


_Ended = tuple[int, T | BaseException]


def visit_all(
    visits: Sequence[Visit[T]], *, threads: int, on_reply: Callable[[T], None]
) -> tuple[T, ...]:
    """Run all visits and return what they return, in order; `on_reply` runs in this thread."""
    waiting = deque(range(len(visits)))
    ended: SimpleQueue[_Ended[T]] = SimpleQueue()
    for _ in range(min(threads, len(visits))):
        threading.Thread(target=_work, args=(visits, waiting, ended), daemon=True).start()
    replies: dict[int, T] = {}
    cut_at: dict[int, float] = {}
    try:
        while len(replies) < len(visits):
            found: list[_Ended[T]] = []
            with suppress(Empty):
                found.append(ended.get(timeout=_TICK_S))
                while True:  # what has come is taken first, however late this thread looks
                    found.append(ended.get_nowait())
            for index, reply in (*found, *_given_up(visits, replies, cut_at)):
                if isinstance(reply, BaseException):
                    raise reply
                if index not in replies:
                    replies[index] = reply
                    on_reply(reply)
    finally:
        waiting.clear()
        for index, visit in enumerate(visits):
            if index not in replies:
                visit.cut()
    return tuple(replies[index] for index in range(len(visits)))


def _work(visits: Sequence[Visit[T]], waiting: deque[int], ended: SimpleQueue[_Ended[T]]) -> None:
    with suppress(IndexError):  # nobody waits any more
        while True:
            index = waiting.popleft()
            try:
                ended.put((index, visits[index].run()))
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
                ended.put((index, error))


def _given_up(
    visits: Sequence[Visit[T]], replies: Mapping[int, T], cut_at: dict[int, float]
) -> list[_Ended[T]]:
    """Cut the visits that are late, and return those whose thread does not come back."""
    now = time.monotonic()
    lost: list[_Ended[T]] = []
    for index, visit in enumerate(visits):
        deadline = visit.deadline
        if index in replies or deadline is None or now < deadline:
            continue
        visit.cut()
        if now > cut_at.setdefault(index, now) + _GRACE_S:
            lost.append((index, visit.late()))
    return lost
