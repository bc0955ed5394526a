"""Who has gone, where nodes no longer hear each other: the larger part of them decides.

A node that hears nobody is itself the suspect. Where the parts are of one size (of two nodes,
always) nobody can tell, and none of them is to blame alone.

What a node knows of the end of its job is kept in memory, and in step with the run folder: calls
between nodes are answered from memory, so that a file server which stalls is not taken for nodes
that have gone; a thread of its own looks into the folder, and writes down the reports of others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from clusterkit.core import files, peers
from clusterkit.core.errors import ClusterkitError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import NodeResult
from clusterkit.core.peers import Member, PeerError
from clusterkit.executors.node.identity import Allocation
from clusterkit.executors.run import attempts, node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder

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
    reason = f"{who} lost each other: the network between them has failed, or that of one of them"
    both = sorted({*here, *there})
    return node_results.lost(both[0], names[both[0]], reason, among=[names[k] for k in both])


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


class PeerState:
    """The first failure of this attempt, and whether somebody has cancelled the job.

    In an elastic job that is the first failure that the job does not survive; the others stand in
    `gone`, and those of nodes that cannot say so themselves are written down as their results.
    """

    def __init__(self, run: RunFolder, nodes: Allocation, *, look_every_s: float = 0.5) -> None:
        """Know nothing yet of the `nodes` of an attempt."""
        self.run = run
        self.nodes = nodes
        self.attempt, self.of, self.least = nodes.attempt, len(nodes.names), nodes.least
        self.look_every_s = look_every_s
        self.gone: dict[int, NodeResult] = {}
        self.out_of_touch = False
        self.failure: NodeResult | None = None
        self.cancelled = False
        self._close = threading.Event()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Look into the folder, and go on looking."""
        self.look()
        threading.Thread(target=self._look_on, daemon=True).start()

    def end(self) -> None:
        """Look and write once more, and stop."""
        self._close.set()
        self.look()

    def note_failure(self, failure: NodeResult) -> None:
        """Take this for the first failure, unless there is one, or the job continues."""
        with self._lock:
            if self.least is None:
                self.failure = self.failure or failure
                return
            self.gone.setdefault(failure.node_rank, failure)
            fatal = attempts.fatal(self.gone.values(), n_nodes=self.of, min_nodes=self.least)
            self.failure = self.failure or fatal

    def lose_touch(self, with_head: NodeResult, *, me: int) -> None:
        """End this node, as the first one cannot be reached; it may have given this node up."""
        there = node_results.read_result(self.run, me, self.attempt)
        if self.least is not None and there is not None and there.lost is not None:
            self.out_of_touch = True
        self.note_failure(with_head)

    def told(self) -> dict[str, Any]:
        """Return what is known, as it is sent to other nodes."""
        failure = self.failure
        return {
            "failure": files.plain(failure) if failure is not None else None,
            "cancelled": self.cancelled,
            "gone": [files.plain(result) for result in list(self.gone.values())],
        }

    def hear(self, message: Mapping[str, Any]) -> None:
        """Take over what another node knows.

        Raises:
            PeerError: it is not what a node tells.
        """
        gone, failure = message.get("gone", []), message.get("failure")
        if not isinstance(gone, list) or len(gone) > self.of:
            raise PeerError("sends no list of the nodes that have gone")
        results = [node_results.result_of(document) for document in (failure, *gone)]
        first, *others = (self._ours(result) for result in results)
        if (failure is not None and first is None) or None in others:
            raise PeerError("sends what is not the result of a node")
        self.cancelled = self.cancelled or message.get("cancelled") is True
        if first is not None:
            with self._lock:
                self.failure = self.failure or first
        for result in filter(None, others):
            self.note_failure(result)

    def _ours(self, result: NodeResult | None) -> NodeResult | None:
        """Return a result unless it is of a node that the attempt has not."""
        return result if result is not None and result.node_rank < self.of else None

    def look(self) -> None:
        """Bring memory and folder in step; what cannot be written stays in memory."""
        run = self.run
        there = node_results.first_failure(run, self.attempt)
        if there is not None:
            with self._lock:
                self.failure = there  # the disk decides which was first, where nodes share it
        cancelled = runfolder.is_cancelled(run)
        with suppress(ClusterkitError):
            self._note_lost()
            if self.failure is not None and there is None and not self.out_of_touch:
                node_results.note_failure(run, self.failure, attempt=self.attempt, n_nodes=self.of)
            if self.cancelled and not cancelled:
                files.create_text(run.cancelled, "")
        self.cancelled = self.cancelled or cancelled

    def _note_lost(self) -> None:
        for rank, result in list(self.gone.items()):
            if result.lost is None or self.out_of_touch:
                continue
            there = node_results.read_result(self.run, rank, self.attempt)
            if there is None or there.lost is None:
                node_results.write_result(
                    self.run, result, attempt=self.attempt, n_nodes=self.of, min_nodes=self.least
                )

    def _look_on(self) -> None:
        while not self._close.wait(self.look_every_s):
            self.look()
