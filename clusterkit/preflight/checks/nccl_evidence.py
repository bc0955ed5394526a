"""What the checks of NCCL variables share: lint findings as rulings, and what is in force."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import NodeFacts, Ruling
from clusterkit.preflight.env_lint import LintFinding
from clusterkit.preflight.probes.host.nccl_settings import CONF, ENVIRONMENT
from clusterkit.transport.probe import Missing, PreflightJob

_LONGEST_VALUE = 40
_LOUD = frozenset({Verdict.WARN, Verdict.FAIL})


def rulings(findings: tuple[LintFinding, ...]) -> Iterator[Ruling]:
    """Yield a ruling for each warning and failure of the lint."""
    for finding in findings:
        if finding.verdict not in _LOUD:
            continue
        value = finding.value or ""
        shown = value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 3] + "..."
        where = f"{finding.source}:{finding.line}: " if finding.line else ""
        yield Ruling(
            verdict=finding.verdict,
            summary=f"{where}{finding.name}={shown}: {finding.summary}",
            evidence=finding.id,
            hint=finding.hint,
            command=f"clusterkit explain {finding.id}",
        )


def job_settings(job: PreflightJob) -> Mapping[str, str]:
    """Return the variables of the job, with those that `network_interface` stands for."""
    if not job.network_interface:
        return job.env
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    return {**dict.fromkeys(names, job.network_interface), **job.env}


def in_force(job: PreflightJob, node: NodeFacts) -> Mapping[str, str]:
    """Return the variables as a process of the job would see them on `node`, as far as known."""
    found: dict[str, str] = {}
    confs, environment = node.of(CONF), node.of(ENVIRONMENT)
    sources = () if isinstance(confs, Missing) else confs[::-1]
    for source in sources:
        found |= {s.name: s.value for s in reversed(source.settings) if s.value is not None}
    if not isinstance(environment, Missing):
        found |= {s.name: s.value for s in environment.settings if s.value is not None}
    return {**found, **job_settings(job)}
