"""What is checked before a job is handed over, and what its nodes are told to check."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from clusterkit.core.model import GpuRequest, LaunchPlan
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.checks.base import Check, Tier
from clusterkit.preflight.checks.host_python import torch
from clusterkit.preflight.checks.nccl import job_env
from clusterkit.preflight.collect import collect
from clusterkit.preflight.evaluate import evaluate
from clusterkit.preflight.on_node import NODE_CHECKS_S
from clusterkit.preflight.report import Report
from clusterkit.preflight.targets import aim_plan, gather, job_of_plan
from clusterkit.transport.base import Reply
from clusterkit.transport.local import LocalTransport

_JUDGED_NAMES = ("NCCL", "RCCL", "GLOO_", "UCX_", "FI_", "OMPI_")


_OWN = (("/", "usr"), ("/", "bin"), ("/", "opt"))
"""Folders that each machine has for itself (hier(7)): a login node often has no torch there."""


def examine(plan: LaunchPlan, *, full: bool, on_reply: Callable[[Reply], None]) -> Report:
    """Return what is to be said about `plan` and the nodes that it may get.

    That lints the job's variables, and asks the nodes (one round trip) where the job spans several
    with GPUs; else it looks at the torch that is here, where the script wants CUDA. `full` always
    asks the nodes, and measures the network between them.

    Raises:
        UserError, RemoteError: as `targets.aim`, and the transport is missing.
    """
    kind, requests = plan.cluster.kind, {part.cluster.gpu_request for part in plan.parts}
    cpus_alone = kind.scheduled and requests == {GpuRequest.NONE}
    several = plan.nodes > 1 and not kind.shares_machine and not cpus_alone
    if not (full or several):
        return _lint(plan)
    checks = tuple(c for c in all_checks() if full or c.tier is not Tier.NETWORK)
    reports = [
        evaluate(gather(aim_plan(part), checks, on_reply=on_reply), checks) for part in plan.parts
    ]
    return reports[0] if len(reports) == 1 else _of_all(reports)


def _of_all(reports: Sequence[Report]) -> Report:
    """Return what is to be said about all components, whose nodes differ and need not be alike."""
    return Report(
        nodes=tuple(dict.fromkeys(node for report in reports for node in report.nodes)),
        findings=tuple(dict.fromkeys(found for report in reports for found in report.findings)),
        unasked=tuple(dict.fromkeys(node for report in reports for node in report.unasked)),
        seconds=sum(report.seconds for report in reports),
    )


def node_checks(
    plan: LaunchPlan,
    checked: Collection[str] = (),
    *,
    before_start: bool = True,
    network: bool = False,
) -> dict[str, Any]:
    """Return the document from which a node knows what to check of itself.

    With `network`, all of them measure what is between them too, where the job has a worker on
    each.

    The nodes `checked` were healthy a moment ago: they look at their hardware alone, and only after
    a failure that another attempt may follow, and before that one.
    """
    asked = sorted(checked)
    several = plan.cluster.kind.scheduled and plan.nodes > 1 and not plan.command.once
    return {
        "job": job_of_plan(plan, ()),
        "asked": asked,
        "before_start": before_start,
        "network": network and several,
    }


def _lint(plan: LaunchPlan) -> Report:
    checks: tuple[Check, ...] = ()
    if any(word in name for name in plan.env for word in _JUDGED_NAMES):
        checks = (job_env,)
    job = job_of_plan(plan, ())
    if job.gpu_use and _has_python_here(plan):
        checks = (*checks, torch)
        job = dataclasses.replace(job, hosts=("localhost",))
        return evaluate(collect(LocalTransport(timeout_s=NODE_CHECKS_S), checks, job), checks)
    nobody = Bundle(job=job, replies=(), collected_at=time.time(), seconds=0.0)
    return evaluate(nobody, checks)


def _has_python_here(plan: LaunchPlan) -> bool:
    """Tell whether the job's interpreter is the one that this machine has by that name."""
    cluster = plan.cluster
    if plan.container or cluster.modules or cluster.setup:
        return False
    if cluster.kind.shares_machine:
        return True
    # A whole path on a cluster with a shared file system: an environment in a home mostly.
    python = Path(cluster.job_python)
    shared = cluster.kind.scheduled or cluster.shared_filesystem
    return shared and python.parts[:2] not in _OWN and python.is_absolute() and python.exists()
