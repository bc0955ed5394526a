"""The first node of a job, which the others call: it notices who does not call any more.

On Slurm the workers call each other while their commands run (`in_touch`): Slurm itself takes
`SlurmdTimeout` to notice that a node has gone, five minutes unless the site says otherwise. Over
ssh the node agents do, and on one machine nobody has to.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from clusterkit.core import peers
from clusterkit.core.errors import RemoteError
from clusterkit.core.model import NodeResult, Runtime
from clusterkit.core.peers import PeerError, TokenError
from clusterkit.core.ports import is_group_free
from clusterkit.core.timing import scaled
from clusterkit.executors.node.identity import Allocation, Identity
from clusterkit.executors.node.partition import (
    GONE,
    PeerState,
    lost_each_other,
    refuses,
    who_has_gone,
)
from clusterkit.executors.node.peers import (
    DOUBT_S,
    SILENCE_S,
    START_TIMEOUT_S,
    PeerConnection,
    peers_port,
)
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder

_DECIDE_S = scaled(3.0, 1.2)
"""How long to wait for others that may be about to fall silent as well."""


class Coordinator(PeerConnection):
    """The first node's side: it answers, and notices who does not call any more."""

    def __init__(self, peer_state: PeerState, ports: Sequence[int], *, gathers: bool) -> None:
        """Know the nodes; nothing is opened yet."""
        super().__init__(0, peer_state, ports, gathers=gathers)
        self._called_at: dict[int, float] = {}
        self._over: set[int] = set()
        self._met_by_others: dict[int, float] = {}
        self._newcomer_at = self._now()
        if not gathers:
            self._go.set()

    def begin(self) -> None:
        """Listen on a free group of ports, and begin to answer.

        Raises:
            RemoteError: there is none.
        """
        for port in self.ports:
            if not self.gathers or is_group_free(port):  # else it is the job's own
                with suppress(OSError):
                    self._listen(port)
                    self.port = port
                    super().begin()
                    return
        tried = ", ".join(str(port) for port in self.ports)
        raise RemoteError(
            f"none of the ports {tried} is free",
            node=self.nodes.names[0],
            hint="set `port_range` to another range",
        )

    def answer(self, rank: int, message: Mapping[str, Any]) -> dict[str, Any]:
        """Note who calls, whom it has met, and return what is known here.

        Raises:
            PeerError: nobody who calls is of this rank, or what it says is no news.
        """
        answer = super().answer(rank, message)
        now = self._now()
        if rank not in self._called_at:
            self._newcomer_at = now
        self._called_at[rank] = now
        if message.get("ended") is True:
            self._over.add(rank)
        met = message.get("met", [])
        if not isinstance(met, list) or len(met) > len(self.nodes.names):
            raise PeerError("sends no list of the nodes that it has met")
        for one in met:
            known = peers.whole({"rank": one}, "rank", 0, len(self.nodes.names) - 1)
            self._met_by_others[known] = now
        return answer

    def _call_on(self) -> None:
        others = set(range(1, self.nodes.tasks))
        while not (self._close.is_set() and (others <= self._over or not self.gathers)):
            if others - self._over <= self._called_at.keys():
                self._go.set()
            self._miss(others)
            time.sleep(0.2)

    def _miss(self, others: set[int]) -> None:
        now = self._now()
        if not self._go.is_set():
            if self._close.is_set() or now - self._newcomer_at >= START_TIMEOUT_S:
                self._give_up(others - self._called_at.keys() - self._over, "never started")
            return
        silent = {
            rank: now - self._called_at[rank]
            for rank in others & self._called_at.keys() - self._over
        }
        late = {rank for rank, silent_s in silent.items() if silent_s >= SILENCE_S}
        if not self.gathers:
            ended = {rank for rank in late if self._has_ended(rank)}
            self._over |= ended
            late -= ended
        doubtful = {k for k, silent_s in silent.items() if silent_s >= DOUBT_S} - late - self._over
        if not late or (doubtful and max(silent[k] for k in late) < SILENCE_S + _DECIDE_S):
            return
        here = {0, *silent} - late - doubtful - self._over
        met = {k for k in late if now - self._met_by_others.get(k, -math.inf) < SILENCE_S}
        if self._goes_on_without(late):
            self._give_up(late, GONE)
        elif met:  # it has gone for this node alone
            self.peer_state.note_failure(lost_each_other(self.nodes.names, {0}, met))
        else:
            for result in self._absent(here, late | doubtful):
                if result.node_rank in late or result.among or result.node_rank == 0:
                    self.peer_state.note_failure(result)
        self._over |= late

    def _absent(self, here: Collection[int], there: Collection[int]) -> tuple[NodeResult, ...]:
        names = self.nodes.names
        if len(here) == len(there) == 1 and self.port is not None:
            (other,) = there
            if refuses((names[other], peers_port(self.port)), self._member, other):
                return (self.nodes.lost(other, GONE),)
        return who_has_gone(names, 0, here, there)

    def _give_up(self, ranks: Collection[int], why: str) -> None:
        for rank in sorted(ranks):
            self.peer_state.note_failure(self.nodes.lost(rank, why))
        self._over |= set(ranks)

    def _goes_on_without(self, late: Collection[int]) -> bool:
        min_nodes = self.nodes.least
        gone = {*self.peer_state.gone, *late}
        return min_nodes is not None and len(self.nodes.names) - len(gone) >= min_nodes


def join(
    rank: int, peer_state: PeerState, ports: Sequence[int], *, gathers: bool = True
) -> PeerConnection:
    """Return the part of one node: the first answers, the others call."""
    if rank:
        return PeerConnection(rank, peer_state, ports, gathers=gathers)
    return Coordinator(peer_state, ports, gathers=gathers)


_FIRST_ANSWER_S = 3.0
"""How long the command waits for a first call: one that was never heard can be missed by nobody."""
_LOOK_EVERY_S = scaled(2.0, 0.5)
"""Seldom, because the watch over the command looks into the same folder."""


@contextmanager
def in_touch(run: RunFolder, me: Identity) -> Iterator[None]:
    """Call and be called; do nothing where a job has one node, or may go on without some."""
    nodes, port = _nodes(run, me), os.environ.get(Runtime.PORT.name, "")
    if nodes is None or not port.isdigit():
        yield
        return
    peer_state = PeerState(run, nodes, look_every_s=_LOOK_EVERY_S)
    try:
        connection = join(me.rank, peer_state, (int(port),), gathers=False)
        connection.begin()
        connection.await_answer(_FIRST_ANSWER_S)
    except (RemoteError, TokenError) as error:
        print(f"clusterkit: nodes that go will be noticed by Slurm alone: {error}", file=sys.stderr)
        yield
        return
    peer_state.begin()
    try:
        yield
    finally:
        connection.leave()
        peer_state.end()


def _nodes(run: RunFolder, me: Identity) -> Allocation | None:
    submission = runfolder.read_submission(run)
    token = os.environ.get(peers.VARIABLE, "")  # of a batch script that makes one
    if submission is None or not token or me.of == 1:
        return None
    if not submission.kind.scheduled or submission.once or submission.least is not None:
        return None
    return Allocation(
        job_id=me.job_id,
        attempt=me.attempt,
        names=me.among,
        slots=(),
        tasks=me.of,
        token=token,
    )
