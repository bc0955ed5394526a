"""What `clusterkit submit` asks of preflight first, and what it makes of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from clusterkit import hostlist
from clusterkit.cli import console
from clusterkit.errors import RemoteError, UserError, choices_hint
from clusterkit.model import LaunchPlan
from clusterkit.runfolder import NODE_CHECKS, PREFLIGHT

if TYPE_CHECKING:
    from clusterkit.cli.job_request import JobRequest
    from clusterkit.preflight.report import Report

MODES = ("auto", "full", "off")
EXIT_FINDINGS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A plan that may be handed over, and what goes with it."""

    plan: LaunchPlan
    checks_limits: bool
    documents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the run folder keeps of it, by file name."""
    without: tuple[str, ...] = ()
    """The nodes that were not fit, and are left out."""


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
    request: JobRequest,
    plan: LaunchPlan,
    mode: str,
    *,
    exclude_unfit: bool,
    force: bool,
    as_json: bool,
) -> Passed:
    """Return the plan to hand over: this one, or one without the unfit nodes.

    Raises:
        typer.Exit: preflight found something, and nobody said to go on.
        UserError, RemoteError: the nodes cannot be asked.
    """
    if mode == "off" or not _has_something_to_ask(plan, mode):
        return Passed(plan=plan, checks_limits=mode != "off")
    from clusterkit.cli.preflight_report import counting
    from clusterkit.preflight.gate import Mode, examine, node_checks

    try:
        with counting(None) as heard:
            report = examine(plan, Mode(mode), heard=heard)
    except RemoteError as error:
        if mode == "full":
            raise
        console.warn(f"the nodes were not asked: {error.message}")
        return Passed(plan=plan, checks_limits=True)
    without: tuple[str, ...] = ()
    if report.bad and not force:
        without = report.exclude
        enough = len(report.usable) + len(report.unasked) >= plan.nodes
        if report.job_is_unfit or not exclude_unfit or not enough:
            _refuse(report, plan, enough=enough, as_json=as_json)
    _remark(report, without)
    documents = {PREFLIGHT: report.document()}
    if mode == "full":
        documents[NODE_CHECKS] = node_checks(plan)
    return Passed(
        plan=request.plan(also_exclude=without) if without else plan,
        checks_limits=True,
        documents=documents,
        without=without,
    )


def _has_something_to_ask(plan: LaunchPlan, mode: str) -> bool:
    # Checks take a tenth of a second to load; a job of one node without variables needs none.
    return mode == "full" or plan.nodes > 1 or bool(plan.env)


def _remark(report: Report, without: tuple[str, ...]) -> None:
    for finding in report.findings:
        if finding.verdict in {"warn", "fail"}:
            where = hostlist.fold_set(finding.nodes) or "the job"
            console.warn(f"{finding.id} {where}: {finding.summary}")
    if without:
        console.note(f"going on without {hostlist.fold_set(without)}")


def _refuse(report: Report, plan: LaunchPlan, *, enough: bool, as_json: bool) -> NoReturn:
    from clusterkit.cli.preflight_report import show

    unfit = hostlist.fold_set(report.exclude)
    left = len(report.usable) + len(report.unasked)
    if report.job_is_unfit:
        what, hint = "the job is not fit to run", "mend what is named above, or --force"
    elif enough:
        what = f"not fit: {unfit}"
        hint = f"--exclude-unfit goes on without (enough are left), --exclude {unfit}, or --force"
    else:
        are_left = {0: "no node is", 1: "1 node is"}.get(left, f"{left} nodes are")
        needed = "1 is" if plan.nodes == 1 else f"{plan.nodes} are"
        what = f"not fit: {unfit}; {are_left} left and {needed} needed"
        fewer = f"ask for fewer with --nodes {left}, " if left else ""
        hint = f"mend the nodes, {fewer}or --force"
    if as_json:
        console.json_document(
            {
                "error": {"message": f"not submitted: {what}", "hint": hint},
                "preflight": report.document(),
            }
        )
    else:
        show(report, say=console.note)
    console.error(f"not submitted: {what}\nhint: {hint}")
    raise typer.Exit(EXIT_FINDINGS)
