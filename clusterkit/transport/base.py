"""What every transport offers: one script, many nodes, whatever came back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from clusterkit.transport.probe import Output, Reach, ReachProblem
from clusterkit.transport.script import AnswerReader, Compound


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back from one node, all of it or what was there when time was up."""

    node: str
    reach: Reach
    outputs: Mapping[str, Output] = field(default_factory=dict)
    """By probe name."""


def fault_of(
    reader: AnswerReader, silence: tuple[ReachProblem, str]
) -> tuple[ReachProblem | None, str]:
    """Return what is wrong with an answer, if anything; `silence` where there is none at all."""
    if reader.excess:
        return ReachProblem.EXCESS, reader.excess
    return (None, "") if reader.has_begun else silence


class Transport(Protocol):
    """A way to run a script on nodes."""

    def ask(
        self, nodes: Sequence[str], compound: Compound, *, heard: Callable[[Reply], None]
    ) -> tuple[Reply, ...]:
        """Run the script on every node at once; return one reply a node, in order.

        `heard` is called with each reply as it comes, never by two threads at a time. A node that
        does not answer is a reply with `reach.problem`; it holds nobody up beyond its time-out.

        Raises:
            RemoteError: the transport itself is not there (no srun, no allocation).
        """
