"""A check: a pure function from the facts of all nodes, and the job, to results.

`@check` makes one of a function. `@each_node` lets that function look at the facts of one node,
`@same_on_all` at the value that nodes have to agree on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
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
class Result:
    """What a check says of one node; equal results are folded into one finding."""

    verdict: Verdict
    summary: str
    evidence: str = ""
    """May differ between nodes without keeping them from being folded."""
    hint: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do about a fault, for results that share it."""

    hint: str = ""
    command: str = ""

    def fail(self, summary: str, evidence: str = "") -> Result:
        """Return the result that the node is not to be used."""
        return self.result(Verdict.FAIL, summary, evidence)

    def warn(self, summary: str, evidence: str = "") -> Result:
        """Return the result that the node is slower or less safe than it could be."""
        return self.result(Verdict.WARN, summary, evidence)

    def result(self, verdict: Verdict, summary: str, evidence: str = "") -> Result:
        """Return a result with this advice."""
        return Result(
            verdict=verdict,
            summary=summary,
            evidence=evidence,
            hint=self.hint,
            command=self.command,
        )


def fail(summary: str, evidence: str = "", *, hint: str = "", command: str = "") -> Result:
    """Return the result that the node is not to be used."""
    return Advice(hint=hint, command=command).fail(summary, evidence)


def warn(summary: str, evidence: str = "", *, hint: str = "", command: str = "") -> Result:
    """Return the result that the node is slower or less safe than it could be."""
    return Advice(hint=hint, command=command).warn(summary, evidence)


@lru_cache(maxsize=1 << 12)
def ok(summary: str, evidence: str = "") -> Result:
    """Return the result that nothing is wrong."""
    return Result(verdict=Verdict.PASS, summary=summary, evidence=evidence)


def skip(summary: str) -> Result:
    """Return the result that the check does not apply."""
    return Result(verdict=Verdict.SKIP, summary=summary)


def unknown(summary: str) -> Result:
    """Return the result that it could not be determined."""
    return Result(verdict=Verdict.UNKNOWN, summary=summary)


def missing(facts: Missing) -> Result:
    """Return the result for facts that are not there."""
    return Result(verdict=facts.verdict, summary=facts.reason)


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


Results = Iterator[tuple[str | None, Result]]
"""Node and result; None for a result about the job as a whole."""


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

    @property
    def area(self) -> str:
        """Group of the check: SSH, HOST, GPU, TOPO, IB, NCCL, FS, SLURM, NET or ENV."""
        return self.id.rstrip("0123456789")


Evaluation = Callable[[Evidence], Results]


def about(
    *, what: str, why: str, how: str, fix: str, source: str
) -> Callable[[Evaluation], tuple[About, Evaluation]]:
    """Return a decorator that explains a check, below `@check`; see `About`."""
    texts = About(what=what, why=why, how=how, fix=fix, source=source)
    return lambda evaluate: (texts, evaluate)


def check(
    id_: str,
    name: str,
    *probes: Probe[Any],
    tier: Tier = Tier.NODE,
    skip_if: Callable[[PreflightJob], str | None] = lambda _: None,
) -> Callable[[tuple[About, Evaluation]], Check]:
    """Return a decorator that makes a check of a function with `@about`; see `Check`.

    Where `skip_if` returns a reason for a job, the check does not apply to it.
    """

    def decorated(explained: tuple[About, Evaluation]) -> Check:
        texts, evaluate = explained

        def judge(evidence: Evidence) -> Results:
            if reason := skip_if(evidence.job):
                yield None, skip(reason)
            else:
                yield from evaluate(evidence)

        return Check(id=id_, name=name, about=texts, probes=probes, judge=judge, tier=tier)

    return decorated


def single_machine(job: PreflightJob) -> str | None:
    """Return why a comparison of machines does not apply to a job."""
    return "a single machine" if job.kind == "local" or len(job.hosts) < 2 else None


Found = Result | Iterable[Result] | None
"""What a rule says of one node: nothing, one result or several."""


def each(evidence: Evidence, probe: Probe[T], rule: Callable[[T], Found]) -> Results:
    """Yield what `rule` says of the facts of every node; missing facts are a result too."""
    for node in evidence.nodes:
        facts = node.of(probe)
        found = missing(facts) if isinstance(facts, Missing) else rule(facts)
        for result in [found] if isinstance(found, Result) else found or ():
            yield node.name, result


def each_node(probe: Probe[T]) -> Callable[[Callable[[T], Found]], Evaluation]:
    """Return a decorator for a rule about the facts of one node; see `each`."""
    return lambda rule: lambda evidence: each(evidence, probe, rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part that a node may have lost: what is said of it where other nodes have one."""

    name: str
    """Such as `RDMA device`."""
    hint: str
    command: str

    def lacking(self, have: int, lack: int) -> Result:
        """Return the result for the `lack` nodes without the part; `have` nodes have it.

        Where half of the nodes have the part, the others have lost theirs, or are out of place. A
        few nodes with a part that most do without may be meant so.
        """
        verdict = Verdict.FAIL if have >= lack else Verdict.WARN
        summary = f"no {self.name}, {have} of {have + lack} nodes have one"
        return Advice(hint=self.hint, command=self.command).result(verdict, summary)


def known(
    evidence: Evidence, probe: Probe[T], *, part: Part | None = None
) -> tuple[dict[str, T], list[tuple[str, Result]]]:
    """Return the facts of the nodes that have some, and the results for those that have none.

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
    results = {name: missing(why) for name, why in without.items()}
    if part is not None and facts:
        lacking = [name for name, why in without.items() if why.verdict is Verdict.SKIP]
        results |= dict.fromkeys(lacking, part.lacking(len(facts), len(lacking)))
    return facts, list(results.items())


V = TypeVar("V", bound=Hashable)


def majority(values: Mapping[str, V]) -> V | None:
    """Return the value that more than half of the nodes have; None where no value has that."""
    return most(Counter(values.values()))


def most(votes: Counter[V]) -> V | None:
    """Return the value that more than half of the votes are for; None where none has that."""
    return next((value for value, n in votes.most_common(1) if n * 2 > votes.total()), None)


def uniform(
    evidence: Evidence,
    probe: Probe[T],
    key: Callable[[T], V | None],
    *,
    what: str,
    odd: Verdict,
    hint: str = "",
    part: Part | None = None,
) -> Results:
    """Rule by majority vote: nodes whose `key` differs from that of most are `odd`.

    `what` names the value in summaries ("driver version"). A node whose key is None is skipped.
    Without a majority every node is `warn`, with the count of each value as evidence. `part` is
    that of `known`.
    """
    values: dict[str, V] = {}
    found, results = known(evidence, probe, part=part)
    yield from results
    for name, facts in found.items():
        if (value := key(facts)) is None:
            yield name, skip(f"no {what}")
        else:
            values[name] = value
    winner = majority(values)
    tally = ", ".join(f"{value}: {n}" for value, n in Counter(values.values()).most_common())
    for name, value in values.items():
        if winner is None:
            summary = f"{what} differs between nodes and no value has a majority"
            yield name, warn(summary, tally, hint=hint)
        elif value == winner:
            yield name, ok(f"{what} {value}")
        else:
            summary = f"{what} is {value}, most nodes have {winner}"
            yield name, Advice(hint=hint).result(odd, summary, tally)


def same_on_all(
    probe: Probe[T], what: str, *, odd: Verdict, hint: str = ""
) -> Callable[[Callable[[T], V | None]], Evaluation]:
    """Return a decorator for the value on which nodes have to agree; see `uniform`."""
    return lambda key: lambda evidence: uniform(evidence, probe, key, what=what, odd=odd, hint=hint)


Ruling = Result
Judgement = Results
passed = ok
"""Names of the first release, for the checks of third parties."""
