"""What is asked of preflight before a job is handed over, and what comes of the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterkit.core.errors import RemoteError, UserError, choices_hint
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import LaunchPlan
from clusterkit.core.shell import quote
from clusterkit.executors.base import Show, untold
from clusterkit.executors.run.runfolder import NODE_CHECKS, PREFLIGHT
from clusterkit.jobs.submit.snapshot import Snapshot
from clusterkit.launch.scripts.kinds import gpu_use

if TYPE_CHECKING:
    from clusterkit.jobs.submit.request import JobRequest
    from clusterkit.preflight.report import Report
    from clusterkit.transport.base import Reply

MODES = ("auto", "full", "off")


class PreflightFailedError(UserError):
    """Preflight found what keeps the job from being submitted."""

    def __init__(self, message: str, *, hint: str, report: Report) -> None:
        """Hold what preflight found as well."""
        super().__init__(message, hint=hint)
        self.report = report


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitCallbacks:
    """Who hears what is not the answer; on a terminal, its user."""

    warn: Callable[[str], None]
    note: Callable[[str], None]
    on_reply: Callable[[Reply], None]
    """Is told of each node that has answered."""
    show: Show = untold
    """Is told in a few words how far it is, again and again; the last of them counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A plan that may be handed over, and what goes with it."""

    plan: LaunchPlan
    documents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the run folder keeps of it, by file name."""
    without: tuple[str, ...] = ()
    """The nodes that were unhealthy, and are left out."""
    snapshot: Snapshot | None = None
    """What the job is to run from; None for the working tree itself."""
    boots: bool = False
    """Whether nodes may have to be started for it first."""


def chosen_mode(given: str | None, plan: LaunchPlan) -> str:
    """Return the mode that was asked for, else that of the cluster.

    Raises:
        UserError: there is no such mode.
    """
    mode = given or plan.cluster.preflight
    if mode not in MODES:
        raise UserError(
            f"--preflight {mode}: unknown", hint=choices_hint(mode, MODES), key="preflight"
        )
    return mode


def pass_gate(
    request: JobRequest, plan: LaunchPlan, mode: str, callbacks: SubmitCallbacks
) -> Passed:
    """Return the plan to hand over: this one, or one without the unhealthy nodes.

    Raises:
        PreflightFailedError: preflight found something, and nobody said to go on.
        UserError, RemoteError: the nodes cannot be asked, or none stands in for one of a component.
    """
    if plan.components and request.get("exclude_unfit"):
        raise UserError(
            "--exclude-unfit: not with --component, where nodes are of several kinds",
            hint="clusterkit preflight, then --exclude NODES",
            key="exclude_unfit",
        )
    force, full = bool(request.get("force")), mode == "full"
    something_to_ask = plan.nodes > 1 or bool(plan.env) or gpu_use(plan) is not None
    if mode == "off" or not (full or something_to_ask):
        return Passed(plan=plan)
    # Checks take a tenth of a second to load.
    from clusterkit.preflight.gate import examine, node_checks  # noqa: PLC0415

    if plan.nodes > 1 and not plan.cluster.kind.shares_machine:
        callbacks.show("preflight: asking the nodes that are not busy")
    try:
        report = examine(plan, full=full, on_reply=callbacks.on_reply)
    except RemoteError as error:
        if full:
            raise
        callbacks.warn(f"the nodes were not asked: {error.message}")
        return Passed(plan=plan)
    without: tuple[str, ...] = ()
    if report.bad and not force:
        without = report.exclude
        enough = len(report.usable) + len(report.unasked) >= plan.nodes
        if report.job_cannot_run or not request.get("exclude_unfit") or not enough:
            raise _refusal(report, plan, enough=enough)
    _note(report, without, callbacks)
    documents = {PREFLIGHT: report.document()}
    # Whoever was not asked, such as a node that Slurm has powered down, checks itself.
    before_start = full or bool(report.unasked and not force)
    if before_start or ((plan.requeue or plan.restarts) and not report.bad):
        asked = () if full else report.usable
        documents[NODE_CHECKS] = node_checks(
            plan, asked, before_start=before_start, network=full and bool(report.unasked)
        )
    return Passed(
        plan=request.plan(also_exclude=without) if without else plan,
        documents=documents,
        without=without,
    )


def _note(report: Report, without: tuple[str, ...], callbacks: SubmitCallbacks) -> None:
    for finding in report.findings:
        if finding.verdict in {"warn", "fail"}:
            where = hostlist.fold_set(finding.nodes) or "the job"
            callbacks.warn(f"{finding.id} {where}: {finding.summary}")
    if report.unasked:
        nodes = hostlist.fold_set(report.unasked)
        callbacks.note(f"{nodes}: busy or powered down, so not asked; checked when the job starts")
    if without:
        callbacks.note(f"going on without {hostlist.fold_set(without)}")


def _refusal(report: Report, plan: LaunchPlan, *, enough: bool) -> PreflightFailedError:
    unhealthy = hostlist.fold_set(report.exclude)
    left = len(report.usable) + len(report.unasked)
    if report.job_cannot_run:
        what, hint = "the job cannot run", "fix the findings above, or --force"
    elif enough:
        what = f"unhealthy: {unhealthy}"
        hint = "--exclude-unfit continues without (enough are left), "
        hint += f"--exclude {quote(unhealthy)}, or --force"
    else:
        of = report.of_asked
        are_left = {0: f"no node {of}is", 1: f"1 {of}is"}.get(left, f"{left} {of}are")
        needed = "1 is" if plan.nodes == 1 else f"{plan.nodes} are"
        what = f"unhealthy: {unhealthy}; {are_left} left and {needed} needed"
        fewer = f"ask for fewer with --nodes {left}, " if left else ""
        hint = f"fix the findings above, {fewer}or --force"
    return PreflightFailedError(f"not submitted: {what}", hint=hint, report=report)
