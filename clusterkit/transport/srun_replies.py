"""What the tasks of a job step say: put together again by srun's labels, and whose it is.

A node speaks for itself alone: which task runs where is what srun says, and not what the task does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from clusterkit.transport.base import Reply, fault_of
from clusterkit.transport.probe import Reach, ReachProblem
from clusterkit.transport.script import AnswerReader, Compound

_LABEL = re.compile(rb" *(\d{1,7}): ?(.*)", re.DOTALL)
_LAUNCHED = re.compile(
    r"^srun: launching \S{1,99} on host (\S{1,255}), 1 tasks: \[?(\d{1,7})\]?$", re.MULTILINE
)
"""What srun says of each task, one a node, before it starts it (_print_launch_msg; 22.05)."""
_LONGEST = 64 << 10
"""Bytes of a line of srun's, which are about 1024."""


class _Task:
    """What one task says, its lines put together again."""

    def __init__(self, compound: Compound) -> None:
        self.reader = AnswerReader(compound)
        self._token = compound.token.encode()
        self._line = bytearray()
        self._began_at: float | None = None

    def feed(self, at: float, piece: bytes) -> None:
        """Read a piece of a line: one without the token goes on where the last one ended."""
        if self._token in piece:
            self._began_at = self._began_at or at
            self.end()
        if self._line or self._token in piece:
            self._line += piece
        else:
            self.reader.skip(len(piece))
        if len(self._line) > _LONGEST:
            self.end()

    def end(self) -> None:
        """Read what has come of a line."""
        if self._line:
            self.reader.feed(bytes(self._line) + b"\n")
        self._line = bytearray()

    def reply(self, node: str, seconds: float) -> Reply:
        """Return it as the reply of a node."""
        answer = self.reader.answer()
        clock = None if answer is None else answer.clock
        problem, detail = fault_of(self.reader, (ReachProblem.SHELL, "no answer came back"))
        at = self._began_at
        return Reply(
            node=node,
            reach=Reach(
                problem=problem,
                detail=detail,
                via="srun",
                clock_skew_s=None if clock is None or at is None else clock - at,
                complete=answer is not None and answer.complete,
                seconds=seconds,
            ),
            outputs={} if answer is None else answer.outputs,
        )


class StepReader:
    """Reads what srun prints while it comes, and keeps of each task what an answer may have."""

    def __init__(self, compound: Compound, *, tasks: int) -> None:
        """Nothing has come yet."""
        self._rest = b""
        self._tasks = [_Task(compound) for _ in range(tasks)]

    def feed(self, at: float, data: bytes) -> bool:
        """Read the next piece, which came at that time (epoch); others may still have to answer."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_LONGEST]
        for line in lines:
            match = _LABEL.fullmatch(line)
            if match is not None and (task := int(match[1])) < len(self._tasks):
                self._tasks[task].feed(at, match[2])
        return True

    def by_node(self, nodes: Sequence[str], said: str) -> dict[str, _Task]:
        """Return the tasks that answered, by node, as srun has `said` where it started them.

        A Slurm that does not say so leaves only what they call themselves; of a name that two
        of them claim, neither is believed.
        """
        for task in self._tasks:
            task.end()
        answers = {
            k: answer for k, one in enumerate(self._tasks) if (answer := one.reader.answer())
        }
        known: dict[int, str] = {}
        for node, number in _LAUNCHED.findall(said):
            known.setdefault(int(number), node)
        if not known:
            claims = Counter(answer.host for answer in answers.values())
            known = {k: one.host for k, one in answers.items() if claims[one.host] == 1}
        told = {k for k, one in enumerate(self._tasks) if one.reader.excess} | answers.keys()
        asked = frozenset(nodes)
        return {known[k]: self._tasks[k] for k in sorted(told) if known.get(k) in asked}
