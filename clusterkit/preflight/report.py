"""The result of a preflight: findings, and which nodes are usable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusterkit.core.findings import Finding, Verdict
from clusterkit.core.records import picked

_BAD = frozenset({Verdict.FAIL})
_BAD_IF_STRICT = frozenset({Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What all checks found, in the order of the checks, the worst of each last."""

    nodes: tuple[str, ...]
    """All nodes that were asked, in rank order."""
    findings: tuple[Finding, ...]
    unasked: tuple[str, ...] = ()
    """Nodes that could not be asked and are not known to be unhealthy, such as busy ones."""
    strict: bool = False
    """Whether warnings and what could not be determined count as failures."""
    seconds: float = 0.0

    @property
    def bad(self) -> tuple[Finding, ...]:
        """The findings that make a node unhealthy, or the job impossible."""
        bad = _BAD_IF_STRICT if self.strict else _BAD
        return tuple(finding for finding in self.findings if finding.verdict in bad)

    @property
    def exclude(self) -> tuple[str, ...]:
        """The unhealthy nodes, in rank order."""
        unhealthy = {node for finding in self.bad for node in finding.nodes}
        return tuple(node for node in self.nodes if node in unhealthy)

    @property
    def usable(self) -> tuple[str, ...]:
        """The nodes that were asked and are not unhealthy, in rank order."""
        others = {*self.exclude, *self.unasked}
        return tuple(node for node in self.nodes if node not in others)

    @property
    def job_cannot_run(self) -> bool:
        """Whether something is wrong that leaving nodes out does not fix."""
        return any(not finding.nodes for finding in self.bad)

    @property
    def of_asked(self) -> str:
        """The words that follow a count of nodes: `of the 3 asked `; none where one was asked."""
        return f"of the {len(self.nodes)} asked " if len(self.nodes) > 1 else ""

    def verdicts(self) -> Mapping[str, Verdict]:
        """Return the worst verdict of every node."""
        found = dict.fromkeys(self.nodes, Verdict.SKIP)
        for finding in self.findings:
            for node in finding.nodes:
                if finding.verdict.severity > found[node].severity:
                    found[node] = finding.verdict
        return found

    def counts(self) -> Mapping[str, int]:
        """Return the number of findings of each verdict."""
        counted = Counter(finding.verdict for finding in self.findings)
        return {verdict.value: counted[verdict] for verdict in Verdict}

    def document(self) -> dict[str, Any]:
        """Return the report as the JSON document of the command-line contract."""
        return {
            **picked(self, "nodes", "usable", "exclude", "findings"),
            "counts": self.counts(),
            "seconds": round(self.seconds, 2),
        }
