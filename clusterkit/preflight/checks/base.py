"""Helpers for checks, node by node or by majority; a check of third parties imports all from here.

`@check` makes a check of a function. `@each_node` lets that function look at the facts of one node,
`@same_on_all` at the value that nodes have to agree on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.results import (
    Advice,
    Result,
    Results,
    advice,
    fail,
    missing,
    ok,
    skip,
    unknown,
    warn,
)
from clusterkit.preflight.checks.types import (
    About,
    Check,
    Evaluation,
    Evidence,
    Lacking,
    NodeFacts,
    Tier,
    about,
    check,
)
from clusterkit.transport.probe import Missing, PreflightJob, Probe

__all__ = [
    "About", "Advice", "Check", "Evidence", "Judgement", "NodeFacts", "Part", "Result", "Results",
    "Ruling", "Tier", "about", "check", "each", "each_node", "fail", "known", "majority", "missing",
    "most", "ok", "passed", "same_on_all", "single_machine", "skip", "uniform", "unknown", "warn",
]  # fmt: skip

T = TypeVar("T")

Ruling = Result
Judgement = Results
passed = ok
"""Names of the first release, for the checks of third parties."""


def single_machine(job: PreflightJob) -> str | None:
    """Return why a comparison of machines does not apply to a job."""
    return "a single machine" if job.kind == "local" or len(job.hosts) < 2 else None


Found = Result | Iterable[Result] | None
"""What a rule says of one node: nothing, one result or several."""


def each_machine(rule: Callable[[NodeFacts], Found]) -> Evaluation:
    """Return the evaluation of each node by a rule that reads what it needs of it."""

    def evaluate(evidence: Evidence) -> Results:
        for node in evidence.nodes:
            try:
                found = rule(node)
                for result in [found] if isinstance(found, Result) else found or ():
                    yield node.name, result
            except Lacking as lacking:
                yield node.name, missing(lacking.facts)

    return evaluate


def each_node(probe: Probe[T]) -> Callable[[Callable[[T], Found]], Evaluation]:
    """Return a decorator for a rule about the facts of each node; missing facts are a result."""
    return lambda rule: each_machine(lambda node: rule(node.need(probe)))


def node_check(
    id_: str, name: str, probe: Probe[T], **options: Any
) -> Callable[[Callable[[T], Found]], Check]:
    """Return a decorator that makes a check of a rule about each node; `options` as for `check`."""
    return lambda rule: check(id_, name, probe, **options)(each_node(probe)(rule))


def machine_check(
    id_: str, name: str, *probes: Probe[Any], **options: Any
) -> Callable[[Callable[[NodeFacts, PreflightJob], Found]], Check]:
    """Return a decorator that makes a check of a rule about each node and the job; see `check`."""
    return lambda rule: check(id_, name, *probes, **options)(
        lambda evidence: each_machine(lambda node: rule(node, evidence.job))(evidence)
    )


def each(evidence: Evidence, probe: Probe[T], rule: Callable[[T], Found]) -> Results:
    """Yield what `rule` says of the facts of every node; see `each_node`."""
    return each_node(probe)(rule)(evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part that a node may have lost: its result where other nodes have one."""

    name: str
    """Such as `RDMA device`."""
    advice: Advice

    def lacking(self, have: int, lack: int) -> Result:
        """Return the result for the `lack` nodes without the part; `have` nodes have it.

        Where half of the nodes have the part, the others have lost theirs, or are out of place. A
        few nodes with a part that most do without may be meant so.
        """
        verdict = Verdict.FAIL if have >= lack else Verdict.WARN
        summary = f"no {self.name}, {have} of {have + lack} nodes have one"
        return self.advice.result(verdict, summary)


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
    key: Callable[[T], V | Result | None],
    *,
    what: str,
    odd: Verdict,
    hint: str = "",
    part: Part | None = None,
) -> Results:
    """Rule by majority vote: nodes whose `key` differs from that of most are `odd`.

    `what` names the value in summaries ("driver version"). A node whose key is None is skipped; one
    whose key is a result gets that, and does not vote.
    Without a majority every node is `warn`, with the count of each value as evidence. `part` is
    that of `known`.
    """
    values: dict[str, V] = {}
    found, results = known(evidence, probe, part=part)
    yield from results
    for name, facts in found.items():
        value = key(facts)
        if value is None or isinstance(value, Result):
            yield name, value or skip(f"no {what}")
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


def same_check(
    id_: str, name: str, probe: Probe[T], what: str, odd: Verdict
) -> Callable[[Callable[[T], V | None]], Check]:
    """Return a decorator that makes a check of the value on which nodes have to agree."""
    evaluation = same_on_all(probe, what, odd=odd, hint=advice(id_).hint)
    return lambda key: check(id_, name, probe, tier=Tier.ROUND_TRIP)(evaluation(key))


def same_on_all(
    probe: Probe[T], what: str, *, odd: Verdict, hint: str = ""
) -> Callable[[Callable[[T], V | None]], Evaluation]:
    """Return a decorator for the value on which nodes have to agree; see `uniform`."""
    return lambda key: lambda evidence: uniform(evidence, probe, key, what=what, odd=odd, hint=hint)
