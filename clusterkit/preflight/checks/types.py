"""A check: a pure function from the facts of all nodes, and the job, to results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar

from clusterkit.preflight.checks.results import Results, skip, texts_of
from clusterkit.transport.probe import Missing, Output, PreflightJob, Probe, Reach, read_output

T = TypeVar("T")


class Tier(StrEnum):
    """What it costs to have the facts of a check."""

    NODE = "node"
    """One round trip, and the facts of one node are enough to evaluate it."""
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


class Lacking(Exception):  # noqa: N818 - a reason, not an error
    """A rule needs facts that are missing."""

    def __init__(self, facts: Missing) -> None:
        """Keep why they are missing."""
        super().__init__(facts.reason)
        self.facts = facts


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
                # How long a probe took is not a part of what it says, and differs everywhere.
                else _parsed(probe, output.stdout, output.stderr, output.exit_code)
            )
        facts: T | Missing = self._read[probe.name]
        return facts

    def need(self, probe: Probe[T]) -> T:
        """Return the facts of one probe.

        Raises:
            Lacking: there are none; `each_machine` makes a result of it.
        """
        facts = self.of(probe)
        if isinstance(facts, Missing):
            raise Lacking(facts)
        return facts


@lru_cache(maxsize=1 << 18)
def _parsed(probe: Probe[T], stdout: str, stderr: str, exit_code: int | None) -> T | Missing:
    # Many nodes print the same.
    return read_output(probe, Output(stdout=stdout, stderr=stderr, exit_code=exit_code))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a check evaluates: the job, and its nodes in rank order."""

    job: PreflightJob
    nodes: tuple[NodeFacts, ...]
    """The nodes that were reached; only the checks of SSH and Slurm look at `unreached`."""
    unreached: tuple[NodeFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that preflight decides. Every node that it evaluates gets a result."""

    id: str
    """Area and three digits, such as `GPU004`; never used again for something else."""
    name: str
    """Such as `gpu-row-remap`; starts with the area in lower case."""
    about: About
    probes: tuple[Probe[Any], ...]
    judge: Callable[[Evidence], Results]
    tier: Tier = Tier.NODE
    skip_if: Callable[[PreflightJob], str | None] = lambda _: None
    """Return why it does not apply to a job, of which nodes are not asked for it then."""

    @property
    def area(self) -> str:
        """Group of the check: SSH, HOST, GPU, TOPO, IB, NCCL, FS, SLURM, NET or ENV."""
        return self.id.rstrip("0123456789")


Evaluation = Callable[[Evidence], Results]
Explained = tuple[About, Evaluation]


def about(
    *, what: str, why: str, how: str, fix: str, source: str
) -> Callable[[Evaluation], Explained]:
    """Return a decorator that explains a check, below `@check`; see `About`.

    Checks of this package do without it: `checks.ini` explains them.
    """
    texts = About(what=what, why=why, how=how, fix=fix, source=source)
    return lambda evaluate: (texts, evaluate)


def check(
    id_: str,
    name: str,
    *probes: Probe[Any],
    tier: Tier = Tier.NODE,
    skip_if: Callable[[PreflightJob], str | None] = lambda _: None,
) -> Callable[[Explained | Evaluation], Check]:
    """Return a decorator that makes a check of a function; see `Check`.

    Where `skip_if` returns a reason for a job, the check does not apply to it.
    """

    def decorated(found: Explained | Evaluation) -> Check:
        texts, evaluate = found if isinstance(found, tuple) else (_about(id_), found)

        def judge(evidence: Evidence) -> Results:
            if reason := skip_if(evidence.job):
                yield None, skip(reason)
            else:
                yield from evaluate(evidence)

        return Check(
            id=id_, name=name, about=texts, probes=probes, judge=judge, tier=tier, skip_if=skip_if
        )

    return decorated


def _about(id_: str) -> About:
    return About(**{one.name: texts_of(id_)[one.name] for one in fields(About)})
