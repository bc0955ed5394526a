"""What a node knows of the end of its job: kept in memory, and in step with the run folder.

Calls between nodes are answered from memory, so that a file server which stalls is not taken for
nodes that have gone; a thread of its own looks into the folder, and writes down what others said.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from clusterkit.core import files
from clusterkit.core.errors import ClusterkitError
from clusterkit.core.model import NodeResult
from clusterkit.core.peers import PeerError
from clusterkit.executors.run import elastic, node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder


class News:
    """The first failure of this attempt, and whether somebody has cancelled the job.

    In an elastic job that is the first failure that the job does not survive; the others stand in
    `gone`, and those of nodes that cannot say so themselves are written down as their results.
    """

    def __init__(
        self,
        run: RunFolder,
        *,
        attempt: int,
        of: int,
        least: int | None = None,
        look_every_s: float = 0.5,
    ) -> None:
        """Know nothing yet; `of` nodes are in the attempt, and `least` of them enough."""
        self.run = run
        self.attempt = attempt
        self.of = of
        self.least = least
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

    def blame(self, failure: NodeResult) -> None:
        """Take this for the first failure, unless there is one, or the job goes on."""
        with self._lock:
            if self.least is None:
                self.failure = self.failure or failure
                return
            self.gone.setdefault(failure.node_rank, failure)
            fatal = elastic.fatal(self.gone.values(), of=self.of, least=self.least)
            self.failure = self.failure or fatal

    def lose_touch(self, with_head: NodeResult, *, me: int) -> None:
        """End this node, as the first one cannot be reached; it may have given this node up."""
        there = node_results.read_result(self.run, me, self.attempt)
        if self.least is not None and there is not None and there.lost is not None:
            self.out_of_touch = True
        self.blame(with_head)

    def told(self) -> dict[str, Any]:
        """Return what is known, as it is told to other nodes."""
        failure = self.failure
        return {
            "failure": files.plain(failure) if failure is not None else None,
            "cancelled": self.cancelled,
            "gone": [files.plain(result) for result in list(self.gone.values())],
        }

    def hear(self, told: Mapping[str, Any]) -> None:
        """Take over what another node knows.

        Raises:
            PeerError: it is not what a node tells.
        """
        gone, failure = told.get("gone", []), told.get("failure")
        if not isinstance(gone, list) or len(gone) > self.of:
            raise PeerError("sends no list of the nodes that have gone")
        results = [node_results.result_of(document) for document in (failure, *gone)]
        first, *others = (self._ours(result) for result in results)
        if (failure is not None and first is None) or None in others:
            raise PeerError("sends what is not the result of a node")
        self.cancelled = self.cancelled or told.get("cancelled") is True
        if first is not None:
            with self._lock:
                self.failure = self.failure or first
        for result in filter(None, others):
            self.blame(result)

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
                node_results.note_failure(run, self.failure, attempt=self.attempt, of=self.of)
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
                    self.run, result, attempt=self.attempt, of=self.of, least=self.least
                )

    def _look_on(self) -> None:
        while not self._close.wait(self.look_every_s):
            self.look()
