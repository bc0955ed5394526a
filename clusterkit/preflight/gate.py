"""What is checked before a job is handed over, and by its nodes before they start it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from clusterkit.core.errors import RemoteError
from clusterkit.core.model import GpuRequest, LaunchPlan
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.bundle_reader import read_job
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.checks.base import Check, Tier
from clusterkit.preflight.checks.host_python import torch
from clusterkit.preflight.checks.nccl import job_env
from clusterkit.preflight.collect import collect
from clusterkit.preflight.evaluate import evaluate
from clusterkit.preflight.report import Report
from clusterkit.preflight.targets import aim_plan, gather, job_of_plan
from clusterkit.transport.base import Reply, Transport
from clusterkit.transport.local import LocalTransport
from clusterkit.transport.probe import PreflightJob

NODE_CHECKS_S = 10.0
"""How long the checks of a node may keep its job waiting."""

_HARDWARE = frozenset({"GPU", "IB"})
"""Areas whose findings may be why a command has failed, and not what it has come to."""
_NO_CAUSE = frozenset({"GPU013", "GPU014", "GPU016", "GPU025", "IB007"})
"""Those that are not: heat and slow links make nobody fail, and IB007 judges the job's settings."""

_ELSEWHERE = frozenset({"SSH", "SLURM", "NET", "FS"})
"""Areas that a node cannot evaluate of itself, or that starting the job has proven already."""

_JUDGED_NAMES = ("NCCL", "RCCL", "GLOO_", "UCX_", "FI_", "OMPI_")


class Mode(StrEnum):
    """`--preflight`."""

    AUTO = "auto"
    FULL = "full"
    OFF = "off"


_OWN = (("/", "usr"), ("/", "bin"), ("/", "opt"))
"""Folders that each machine has for itself (hier(7)): a login node often has no torch there."""


def examine(plan: LaunchPlan, mode: Mode, *, on_reply: Callable[[Reply], None]) -> Report:
    """Return what is to be said about `plan` and the nodes that it may get.

    `auto` lints the job's variables, and asks the nodes (one round trip) where the job spans
    several with GPUs; else it looks at the torch that is here, where the script wants CUDA. `full`
    always asks the nodes, and measures the network between them.

    Raises:
        UserError, RemoteError: as `targets.aim`, and the transport is not there.
    """
    kind, request = plan.cluster.kind, plan.cluster.gpu_request
    cpus_alone = kind.scheduled and request is GpuRequest.NONE
    several = plan.nodes > 1 and not kind.shares_machine and not cpus_alone
    if mode is not Mode.FULL and not several:
        return _lint(plan)
    checks = tuple(c for c in all_checks() if mode is Mode.FULL or c.tier is not Tier.NETWORK)
    return evaluate(gather(aim_plan(plan), checks, on_reply=on_reply), checks)


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


def examine_here(document: Mapping[str, Any], node: str, *, hardware: bool = False) -> Report:
    """Evaluate this machine, as `node`, by the checks that need nothing but itself.

    Of `hardware` alone, by those of its GPUs and InfiniBand ports that can make a command fail.

    Raises:
        UserError: the document is damaged.
        RemoteError: there is no shell, or it does not answer in time.
    """
    alone = checks_of_one_node()
    causes = (c for c in alone if c.area in _HARDWARE and c.id not in _NO_CAUSE)
    checks = tuple(causes) if hardware else alone
    job = read_job(document, hosts=(node,))
    return evaluate(ask_here(job, checks, within_s=NODE_CHECKS_S), checks)


def examine_network(
    document: Mapping[str, Any], nodes: tuple[str, ...], transport: Transport
) -> Report:
    """Evaluate the network between the nodes of a job that has started.

    A node that cannot be asked is none of its findings.

    Raises:
        UserError: the document is damaged.
        RemoteError: the transport itself is not there.
    """
    from clusterkit.preflight.network import with_network  # noqa: PLC0415 - seldom asked for

    checks = tuple(c for c in all_checks() if c.tier is Tier.NETWORK)
    bundle = collect(transport, checks, read_job(document, hosts=nodes))
    report = evaluate(with_network(bundle, transport, checks), checks)
    known = {check.id for check in checks}
    findings = tuple(finding for finding in report.findings if finding.id in known)
    return dataclasses.replace(report, findings=findings)


def checks_of_one_node() -> tuple[Check, ...]:
    """Return the checks that a machine can evaluate of itself, without Slurm and a network."""
    return tuple(c for c in all_checks() if c.tier is Tier.NODE and c.area not in _ELSEWHERE)


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
