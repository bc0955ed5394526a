"""What a machine checks of itself: nodes of a job, and `preflight --self`.

It is run on every node, often: what reads configurations and plans is not loaded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from clusterkit.core.errors import RemoteError
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.bundle_reader import read_job
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.checks.base import Check, Tier
from clusterkit.preflight.collect import collect
from clusterkit.preflight.evaluate import evaluate
from clusterkit.preflight.report import Report
from clusterkit.transport.base import Transport
from clusterkit.transport.local import LocalTransport
from clusterkit.transport.probe import PreflightJob

NODE_CHECKS_S = 10.0
"""How long the checks of a node may keep its job waiting."""

_HARDWARE = frozenset({"GPU", "IB"})
"""Areas whose findings may be why a command has failed, and not what it has come to."""
_NO_CAUSE = frozenset({"GPU013", "GPU014", "GPU016", "GPU025", "IB007"})
"""Those that are not: heat and slow links make nobody fail, and IB007 judges the job's settings."""

_INTERPRETER = "HOST013"
ELSEWHERE = frozenset({"SSH", "SLURM", "NET", "FS"})
"""Areas that a node cannot evaluate of itself, or that starting the job has proven already."""


def examine_here(document: Mapping[str, Any], node: str, *, hardware: bool = False) -> Report:
    """Evaluate this machine, as `node`, by the checks that need nothing but itself.

    Of `hardware` alone, by those of its GPUs and InfiniBand ports that can make a command fail.

    Raises:
        UserError: the document is damaged.
        RemoteError: there is no shell, or it does not answer in time.
    """
    alone = checks_of_one_node(all_checks(ELSEWHERE))
    causes = (c for c in alone if c.area in _HARDWARE and c.id not in _NO_CAUSE)
    # The interpreter is compared with that of others, but one that is missing is missing.
    interpreter = (c for c in all_checks(ELSEWHERE) if c.id == _INTERPRETER)
    checks = tuple(causes) if hardware else (*alone, *interpreter)
    job = read_job(document, hosts=(node,))
    return evaluate(ask_here(job, checks, within_s=NODE_CHECKS_S), checks)


def examine_network(
    document: Mapping[str, Any], nodes: tuple[str, ...], transport: Transport
) -> Report:
    """Evaluate the network between the nodes of a job that has started.

    A node that cannot be asked is none of its findings.

    Raises:
        UserError: the document is damaged.
        RemoteError: the transport itself is missing.
    """
    from clusterkit.preflight.network import with_network  # noqa: PLC0415 - seldom asked for

    checks = tuple(c for c in all_checks() if c.tier is Tier.NETWORK)
    bundle = collect(transport, checks, read_job(document, hosts=nodes))
    report = evaluate(with_network(bundle, transport, checks), checks)
    known = {check.id for check in checks}
    findings = tuple(finding for finding in report.findings if finding.id in known)
    return dataclasses.replace(report, findings=findings)


def checks_of_one_node(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Return those that a machine can evaluate of itself, without Slurm and a network."""
    return tuple(c for c in checks if c.tier is Tier.NODE and c.area not in ELSEWHERE)


def ask_here(job: PreflightJob, checks: Sequence[Check], *, within_s: float) -> Bundle:
    """Return what this machine, the one host of `job`, says to `checks`.

    Raises:
        RemoteError: there is no shell, or it does not answer in time.
    """
    bundle = collect(LocalTransport(timeout_s=within_s), checks, job)
    for reply in bundle.replies:
        if reply.reach.problem is not None:
            raise RemoteError(reply.reach.detail, node=reply.node)
    return bundle
