"""Evaluate a bundle: facts to results to findings. Pure; works the same live and on a replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from clusterkit.core.findings import Finding, Verdict
from clusterkit.core.hosts import hostlist
from clusterkit.preflight.bundle import Bundle, uncollected
from clusterkit.preflight.checks.base import Check, Evidence, NodeFacts, Result, Tier
from clusterkit.preflight.checks.ssh import reachable
from clusterkit.preflight.report import Report
from clusterkit.transport.probe import Missing, Probe, ReachProblem

_TRIES = 3
"""Answers from which on it can be told that a node talks nonsense."""
_NOT_ASKED = frozenset({ReachProblem.BUSY, ReachProblem.DEFERRED})
_SHOWN = 5
"""Distinct pieces of evidence that one finding holds."""


@uncollected()
def evaluate(bundle: Bundle, checks: Sequence[Check], *, strict: bool = False) -> Report:
    """Return what `checks` conclude from `bundle`.

    A node with a `fail` is not usable; with `strict`, one with a `warn` or `unknown` neither.
    Whatever `checks` are: a node that was not reached is named, and not usable.
    """
    evidence = evidence_of(bundle, checks)
    if evidence.unreached and all(check.id != reachable.id for check in checks):
        checks = (reachable, *checks)
    unasked = {node.name for node in evidence.unreached if node.reach.problem in _NOT_ASKED}
    return Report(
        nodes=tuple(reply.node for reply in bundle.replies),
        findings=tuple(finding for check in checks for finding in findings_of(check, evidence)),
        unasked=tuple(reply.node for reply in bundle.replies if reply.node in unasked),
        strict=strict,
        seconds=bundle.seconds,
    )


def evidence_of(bundle: Bundle, checks: Sequence[Check] = ()) -> Evidence:
    """Return what checks evaluate of a bundle; nodes with senseless answers are unreached."""
    facts = [
        NodeFacts(name=reply.node, outputs=reply.outputs, reach=reply.reach)
        for reply in bundle.replies
    ]
    probes = _ours(bundle, checks)
    nodes = [_disbelieved(node, probes) or node for node in facts]
    return Evidence(
        job=bundle.job,
        nodes=tuple(node for node in nodes if node.reach.problem is None),
        unreached=tuple(node for node in nodes if node.reach.problem is not None),
    )


def _ours(bundle: Bundle, checks: Sequence[Check]) -> tuple[Probe[Any], ...]:
    """Return the probes that the nodes were asked and that always answer in a form of our own.

    Those with a lane pass on what a vendor's tool prints, whose next release may look otherwise.
    """
    own = [
        check for check in checks if check.id in bundle.checks and check.tier is not Tier.NETWORK
    ]
    probes = {probe.name: probe for check in own for probe in check.probes}
    seen = {name for reply in bundle.replies for name in reply.outputs}
    return tuple(p for name, p in probes.items() if p.lane is None and name in seen)


def _disbelieved(node: NodeFacts, probes: Sequence[Probe[Any]]) -> NodeFacts | None:
    """Return a node of whose answers most make no sense as one that did not answer."""
    if node.reach.problem is not None or not node.reach.complete or len(probes) < _TRIES:
        return None
    absent = [probe.name for probe in probes if probe.name not in node.outputs]
    found = ((p.name, node.of(p)) for p in probes if p.name in node.outputs)
    odd = [name for name, facts in found if isinstance(facts, Missing) and facts.unparsed]
    if 2 * len(absent + odd) <= len(probes):
        return None
    detail = f"of {len(probes)} answers {len(odd)} make no sense, and {len(absent)} are missing"
    reach = dataclasses.replace(node.reach, problem=ReachProblem.NONSENSE, detail=detail)
    return dataclasses.replace(node, reach=reach)


def findings_of(check: Check, evidence: Evidence) -> tuple[Finding, ...]:
    """Return the findings of one check, equal results folded, worst last."""
    groups: dict[tuple[Verdict, str, str, str], list[tuple[str | None, Result]]] = {}
    for node, result in check.judge(evidence):
        key = (result.verdict, result.summary, result.hint, result.command)
        groups.setdefault(key, []).append((node, result))
    findings = [
        Finding(
            id=check.id,
            check=check.name,
            verdict=verdict,
            nodes=tuple(dict.fromkeys(node for node, _ in members if node is not None)),
            summary=summary,
            evidence=_merged(members),
            hint=hint,
            command=command,
        )
        for (verdict, summary, hint, command), members in groups.items()
    ]
    return tuple(sorted(findings, key=lambda finding: finding.verdict.severity))


def _merged(members: Iterable[tuple[str | None, Result]]) -> str:
    by_text: dict[str, list[str]] = {}
    for node, result in members:
        if result.evidence:
            by_text.setdefault(result.evidence, []).append(node or "")
    if len(by_text) == 1:
        return next(iter(by_text))
    lines = [f"{hostlist.fold(nodes)}: {text}" for text, nodes in list(by_text.items())[:_SHOWN]]
    if len(by_text) > _SHOWN:
        lines.append(f"... and {len(by_text) - _SHOWN} more")
    return "\n".join(lines)
