"""A check: a pure function from the facts of all nodes, and the job, to rulings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar

from clusterkit.core.findings import Verdict
from clusterkit.transport.probe import Missing, Output, PreflightJob, Probe, Reach, read_output

T = TypeVar("T")


class Tier(StrEnum):
    """What it costs to have the facts of a check."""

    NODE = "node"
    """One round trip, and the facts of one node are enough to judge it."""
    ROUND_TRIP = "round-trip"
    """One round trip; compares nodes with each other."""
    NETWORK = "network"
    """Traffic between the nodes (`--network`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What `clusterkit explain ID` says; each a sentence or a few."""

    what: str
    why: str
    """Why it matters to a training job."""
    how: str
    """How it is measured, with the command."""
    fix: str
    source: str
    """Where the rule or the threshold comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What a check says of one node; equal rulings are folded into one finding."""

    verdict: Verdict
    summary: str
    evidence: str = ""
    """May differ between nodes without keeping them from being folded."""
    hint: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Everything that is known about one node."""

    name: str
    outputs: Mapping[str, Output]
    reach: Reach

    # Several checks read one probe; what they read first is kept here.
    _read: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def of(self, probe: Probe[T]) -> T | Missing:
        """Return the facts of one probe, or why there are none."""
        if probe.name not in self._read:
            output = self.outputs.get(probe.name)
            self._read[probe.name] = (
                read_output(probe, None)
                if output is None
                # How long a probe took is no part of what it says, and differs everywhere.
                else _parsed(probe, output.stdout, output.stderr, output.exit_code)
            )
        facts: T | Missing = self._read[probe.name]
        return facts


@lru_cache(maxsize=1 << 18)
def _parsed(probe: Probe[T], stdout: str, stderr: str, exit_code: int | None) -> T | Missing:
    # Many nodes print the same.
    return read_output(probe, Output(stdout=stdout, stderr=stderr, exit_code=exit_code))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a check judges: the job, and its nodes in rank order."""

    job: PreflightJob
    nodes: tuple[NodeFacts, ...]
    """The nodes that were reached; only the checks of SSH and Slurm look at `unreached`."""
    unreached: tuple[NodeFacts, ...] = ()


Judgement = Iterator[tuple[str | None, Ruling]]
"""Node and ruling; None for a ruling about the job as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that preflight decides. Every node that it judges gets a ruling."""

    id: str
    """Area and three digits, such as `GPU004`; never used again for something else."""
    name: str
    """Such as `gpu-row-remap`; starts with the area in lower case."""
    about: About
    probes: tuple[Probe[Any], ...]
    judge: Callable[[Evidence], Judgement]
    tier: Tier = Tier.NODE

    @property
    def area(self) -> str:
        """Group of the check: SSH, HOST, GPU, TOPO, IB, NCCL, FS, SLURM, NET or ENV."""
        return self.id.rstrip("0123456789")


def each(evidence: Evidence, probe: Probe[T], rule: Callable[[T], Ruling | None]) -> Judgement:
    """Apply `rule` to the facts of every node; None passes over a node, missing facts rule too."""
    for node in evidence.nodes:
        facts = node.of(probe)
        if isinstance(facts, Missing):
            yield node.name, missing(facts)
        elif (ruling := rule(facts)) is not None:
            yield node.name, ruling


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part that a node may have lost: what is said of it where other nodes have one."""

    name: str
    """Such as `RDMA device`."""
    hint: str
    command: str

    def lacking(self, have: int, lack: int) -> Ruling:
        """Return the ruling for the `lack` nodes without the part; `have` nodes have it.

        Where half of the nodes have the part, the others have lost theirs, or are out of place. A
        few nodes with a part that most do without may be meant so.
        """
        return Ruling(
            verdict=Verdict.FAIL if have >= lack else Verdict.WARN,
            summary=f"no {self.name}, {have} of {have + lack} nodes have one",
            hint=self.hint,
            command=self.command,
        )


def known(
    evidence: Evidence, probe: Probe[T], *, part: Part | None = None
) -> tuple[dict[str, T], list[tuple[str, Ruling]]]:
    """Return the facts of the nodes that have some, and the rulings for those that have none.

    A node without the part that `probe` looks at is skipped; given `part`, only where no node has
    it.
    """
    facts: dict[str, T] = {}
    without: dict[str, Missing] = {}
    for node in evidence.nodes:
        found = node.of(probe)
        if isinstance(found, Missing):
            without[node.name] = found
        else:
            facts[node.name] = found
    rulings = {name: missing(why) for name, why in without.items()}
    if part is not None and facts:
        lacking = [name for name, why in without.items() if why.verdict is Verdict.SKIP]
        rulings |= dict.fromkeys(lacking, part.lacking(len(facts), len(lacking)))
    return facts, list(rulings.items())


def missing(facts: Missing) -> Ruling:
    """Return the ruling for facts that are not there."""
    return Ruling(verdict=facts.verdict, summary=facts.reason)


@lru_cache(maxsize=1 << 12)
def passed(summary: str, evidence: str = "") -> Ruling:
    """Return a ruling that nothing is wrong."""
    return Ruling(verdict=Verdict.PASS, summary=summary, evidence=evidence)


V = TypeVar("V", bound=Hashable)


def majority(values: Mapping[str, V]) -> V | None:
    """Return the value that more than half of the nodes have; None where no value has that."""
    ranked = Counter(values.values()).most_common(1)
    if not ranked or ranked[0][1] * 2 <= len(values):
        return None
    return ranked[0][0]


def uniform(
    evidence: Evidence,
    probe: Probe[T],
    key: Callable[[T], V | None],
    *,
    what: str,
    odd: Verdict,
    hint: str = "",
    part: Part | None = None,
) -> Judgement:
    """Rule by majority vote: nodes whose `key` differs from that of most are `odd`.

    `what` names the value in summaries ("driver version"). A node whose key is None is skipped.
    Without a majority every node is `warn`, with the count of each value as evidence. `part` is
    that of `known`.
    """
    values: dict[str, V] = {}
    found, rulings = known(evidence, probe, part=part)
    yield from rulings
    for name, facts in found.items():
        if (value := key(facts)) is None:
            yield name, Ruling(verdict=Verdict.SKIP, summary=f"no {what}")
        else:
            values[name] = value
    winner = majority(values)
    tally = ", ".join(f"{value}: {n}" for value, n in Counter(values.values()).most_common())
    for name, value in values.items():
        if winner is None:
            summary = f"{what} differs between nodes and no value has a majority"
            yield name, Ruling(verdict=Verdict.WARN, summary=summary, evidence=tally, hint=hint)
        elif value == winner:
            yield name, passed(f"{what} {value}")
        else:
            summary = f"{what} is {value}, most nodes have {winner}"
            yield name, Ruling(verdict=odd, summary=summary, evidence=tally, hint=hint)
