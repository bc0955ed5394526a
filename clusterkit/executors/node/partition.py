"""Who has gone, where nodes no longer hear each other: the larger part of them decides.

A node that hears nobody is itself the suspect. Where the parts are of one size (of two nodes,
always) nobody can tell, and none of them is to blame alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterkit.core import peers
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import NodeResult
from clusterkit.core.peers import Member, PeerError
from clusterkit.executors.run import node_results

_WITNESSES = 8
"""Other nodes that a node asks when it no longer hears the first one; of a small job, all."""
_ASK_S = 1.0
GONE = "no longer answers"


def who_has_gone(
    names: tuple[str, ...], me: int, here: Collection[int], there: Collection[int]
) -> tuple[NodeResult, ...]:
    """Return who is to blame that the nodes `here`, `me` among them, do not hear those `there`."""
    if len(here) > len(there):
        return tuple(node_results.lost(rank, names[rank], GONE) for rank in sorted(there))
    if len(here) < len(there):
        return (node_results.lost(me, names[me], "has lost its network"),)
    return (lost_each_other(names, here, there),)


def lost_each_other(
    names: tuple[str, ...], here: Collection[int], there: Collection[int]
) -> NodeResult:
    """Return the result of an attempt whose nodes lost each other, of which it blames none."""
    sides = sorted(
        (min(side), hostlist.fold([names[k] for k in sorted(side)])) for side in (here, there)
    )
    who = f"{sides[0][1]} and {sides[1][1]}"
    words = f"{who} lost each other: the network between them has failed, or that of one of them"
    both = sorted({*here, *there})
    return node_results.lost(both[0], names[both[0]], words, among=[names[k] for k in both])


def refuses(address: tuple[str, int], member: Member, rank: int) -> bool:
    """Tell whether the machine of a node answers, and nobody listens there any more.

    Then the network is in order, and it is the node's process that has gone. Takes 2 s at most.
    """
    try:
        peers.connect(address, member, rank=rank, timeout_s=_ASK_S).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


@dataclass(slots=True, kw_only=True)
class Views:
    """What the witnesses of a node say in one round, or that they cannot be reached."""

    reached: set[int] = field(default_factory=set)
    unreached: set[int] = field(default_factory=set)
    head_s: float | None = None
    """How long ago one of them heard the first node last."""


class Witnesses:
    """Some other nodes, which a node asks when it no longer hears the first one.

    Only those count that could be reached while all was well: a firewall is no evidence.
    """

    def __init__(self, names: tuple[str, ...], tasks: int, member: Member) -> None:
        """Choose them, far from each other: a rack may be cut off as a whole.

        Each node asks others, and each is asked by as many: no few of them decide for all.
        """
        self._names = names
        self._member = member
        others = [*range(member.rank + 1, tasks), *range(1, min(member.rank, tasks))]
        count = min(_WITNESSES, len(others))
        self._ranks = [others[k * len(others) // count] for k in range(count)]

    def note_reached(self, port: int) -> None:
        """Keep those that can be reached now."""
        self._ranks = sorted(self.ask(port, {}, lambda _: None).reached)

    def ask(
        self, port: int, question: Mapping[str, Any], hear: Callable[[Mapping[str, Any]], None]
    ) -> Views:
        """Ask all at once, and hand their news to `hear`; takes two seconds at most."""
        views = Views()
        threads = [
            threading.Thread(
                target=self._ask, args=(rank, port, question, hear, views), daemon=True
            )
            for rank in self._ranks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * _ASK_S)
        return views

    def _ask(
        self,
        rank: int,
        port: int,
        question: Mapping[str, Any],
        hear: Callable[[Mapping[str, Any]], None],
        views: Views,
    ) -> None:
        address = (self._names[rank], port)
        try:
            with peers.connect(address, self._member, rank=rank, timeout_s=_ASK_S) as connection:
                connection.send(question, within_s=_ASK_S)
                answer = connection.receive(_ASK_S, _ASK_S)
                hear(answer)
                head_s = peers.seconds(answer, "head_s")
                views.head_s = head_s if views.head_s is None else min(head_s, views.head_s)
        except (PeerError, ConnectionRefusedError, ConnectionResetError):
            pass  # its machine answers, whoever that is
        except OSError as error:
            if not peers.is_shortage(error):
                views.unreached.add(rank)
            return
        views.reached.add(rank)
