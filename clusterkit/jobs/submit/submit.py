"""Submit one job: what every way to ask for it goes through, in this order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from clusterkit.core.model import ClusterKind, LaunchPlan
from clusterkit.executors.run.dependencies import After, Ties
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.jobs.submit.hand_over import conditions_of, hand_over, require_runnable
from clusterkit.jobs.submit.packages import require_package
from clusterkit.jobs.submit.preflight import Listener, chosen_mode, pass_gate
from clusterkit.jobs.submit.request import JobRequest

_CROWD = 32
"""So many processes for each processor of this machine are a slip of the finger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job that could be started, as far as it shows without asking anybody."""

    request: JobRequest
    plan: LaunchPlan
    mode: str
    """What is to be asked of preflight first."""
    after: tuple[After, ...]


def prepare(request: JobRequest, *, preflight: str | None, after: Sequence[str]) -> Prepared:
    """Return what would be submitted.

    Raises:
        UserError: it cannot be, with the place of what is wrong.
    """
    plan = request.plan()
    with request.placing():
        mode = chosen_mode(preflight, plan)
        require_runnable(plan)
        conditions = conditions_of(after, plan)
    processors = os.cpu_count() or 1
    if plan.cluster.kind is ClusterKind.LOCAL and plan.processes > _CROWD * processors:
        request.warn(
            f"{plan.processes:,} processes on this machine, whose processors are {processors:,}:"
            " --nodes and --gpus-per-node say how many"
        )
    return Prepared(request=request, plan=plan, mode=mode, after=conditions)


def start(
    prepared: Prepared,
    *,
    exclude_unfit: bool,
    force: bool,
    listener: Listener,
    command_line: Sequence[str] = (),
) -> tuple[LaunchPlan, RunFolder, Submission]:
    """Check the nodes and hand the job over; return its plan, which may leave out unfit nodes.

    Raises:
        NotFitError: preflight found something, and nobody said to go on.
        UserError, RemoteError: as `pass_gate` and `hand_over`.
    """
    require_package(prepared.plan)
    passed = pass_gate(
        prepared.request,
        prepared.plan,
        prepared.mode,
        exclude_unfit=exclude_unfit,
        force=force,
        listener=listener,
    )
    run, submission = hand_over(
        passed.plan,
        passed,
        Ties(after=prepared.after),
        command_line=command_line,
        note=listener.note,
    )
    return passed.plan, run, submission
