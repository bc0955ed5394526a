"""`clusterkit submit --array`: one job for each element of a sweep."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.job_options import refuse_dry_run_behind, warn_of_script
from clusterkit.cli.frame.main import EXIT_COULD_NOT, EXIT_INTERRUPTED
from clusterkit.cli.jobs.submit_output import (
    exit_by,
    forecast_of,
    headline,
    listening,
    show_forecast,
    show_starts,
    show_summary,
    show_with_script,
    showing_refusal,
)
from clusterkit.cli.jobs.wait import wait_for_runs
from clusterkit.core import files
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.text import cut, in_line, table
from clusterkit.executors.base import RefusalError
from clusterkit.executors.run.dependencies import Condition, Dependencies, Dependency, waiting_for
from clusterkit.jobs.document import array_document
from clusterkit.jobs.start_queued import is_queued, start_due
from clusterkit.jobs.starter import leave_behind
from clusterkit.jobs.state.load import load_jobs
from clusterkit.jobs.submit.hand_over import hand_over, tied
from clusterkit.jobs.submit.submit import check, prepare
from clusterkit.launch.array.spec import Sweep, fold_numbers
from clusterkit.launch.render import render

if TYPE_CHECKING:
    from clusterkit.core.model import LaunchPlan
    from clusterkit.executors.run.runfolder import RunFolder, Submission
    from clusterkit.jobs.submit.preflight import Passed
    from clusterkit.jobs.submit.request import JobRequest

Failure = UserError | RemoteError | KeyboardInterrupt
"""What may end a submission in the middle."""

_SHOWN_FIRST, _SHOWN_LAST = 10, 2
_WIDEST = 40
_MOST_CONDITIONS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Array:
    """What is to be handed over, in order."""

    array: str
    sweep: Sweep
    plans: tuple[LaunchPlan, ...]
    after: tuple[Dependency, ...]

    def dependencies(
        self, position: int, before: Sequence[Submission], runs: Sequence[RunFolder]
    ) -> Dependencies:
        """Return what the job at this position waits for: `--after`, and its turn.

        With K at once each job follows the one K places before it, however that ends; then never
        more than K run, and neither Slurm nor a client has to count.
        """
        after = self.after
        at_once = self.sweep.at_once
        if at_once is not None and position >= at_once:
            other = position - at_once
            after += (
                Dependency(
                    run_dir=str(runs[other].path),
                    job_id=before[other].job_id or runs[other].run_id,
                    ending=Condition.ANY,
                ),
            )
        element = self.sweep.elements[position]
        return Dependencies(
            array=self.array, index=element.index, values=element.values, after=after
        )


def submit_array(
    request: JobRequest, sweep: Sweep, *, dry_run: bool, wait: bool, as_json: bool
) -> None:
    """Plan every job of the array, check the first for all of them, and hand them over in order.

    Raises:
        UserError, RemoteError: nothing was submitted.
        typer.Exit: some were, or the array was waited for.
    """
    prepared = prepare(request, sweep)
    after, plans = prepared.after, prepared.plans
    _require_few_conditions(after, len(plans))
    warn_of_script(prepared.plan)
    if dry_run:
        _show(sweep, plans, after, as_json=as_json)
        return
    refuse_dry_run_behind(prepared.plan)
    with showing_refusal(as_json=as_json), listening() as callbacks:
        passed = check(prepared, callbacks)
    if passed.without:
        plans = request.plans(sweep, also_exclude=passed.without)
    name = f"array-{secrets.token_hex(3)}"
    array = _Array(array=name, sweep=sweep, plans=plans, after=after)
    with console.counting(len(plans), "submitted") as counted:
        runs, failure = _hand_over_all(array, passed, counted)
    queued = [] if wait else [job for job in load_jobs(runs) if is_queued(job)]
    if queued:  # a client has to start them
        start_due(queued)
    leave_behind(runs)
    if failure is not None:
        _report_failure(array, runs, failure, as_json=as_json)
        interrupted = isinstance(failure, KeyboardInterrupt)
        raise typer.Exit(EXIT_INTERRUPTED if interrupted else EXIT_COULD_NOT)
    if as_json and not wait:
        console.json_document(array_document(array.array, load_jobs(runs)))
    elif not as_json:
        _announce(array, runs)
    if wait:
        raise typer.Exit(wait_for_runs(runs, array=array.array, as_json=as_json))


def _require_few_conditions(after: Sequence[Dependency], count: int) -> None:
    """Refuse what nobody could look through any more: every job of many after every one of many.

    Raises:
        UserError: it is too much.
    """
    if len(after) * count > _MOST_CONDITIONS:
        raise UserError(
            f"{count} jobs after {len(after)} others each: more than clusterkit keeps track of",
            hint="submit one small job --after the others, and the array --after that one",
        )


def _hand_over_all(
    array: _Array, passed: Passed, counted: Callable[[object], None]
) -> tuple[list[RunFolder], Failure | None]:
    """Return the run folders of what was submitted, and what kept the rest from it."""
    runs: list[RunFolder] = []
    submissions: list[Submission] = []
    for position, plan in enumerate(array.plans):
        dependencies = array.dependencies(position, submissions, runs)
        try:
            run, submission = hand_over(
                plan,
                passed,
                dependencies,
                command_line=sys.argv,
                note=console.note,
            )
        except (UserError, RemoteError, KeyboardInterrupt) as error:
            if not runs:
                raise
            files.remove_tree(runs[0].for_others)
            return runs, error
        runs.append(run)
        submissions.append(submission)
        if passed.snapshot is not None:
            last = len(runs) + 1 == len(array.plans)
            passed = replace(passed, snapshot=passed.snapshot.for_next(runs[0], last=last))
        counted(submission)
    return runs, None


def _announce(array: _Array, runs: Sequence[RunFolder]) -> None:
    plan = array.plans[0]
    limit = f"; {array.sweep.at_once} at once" if array.sweep.at_once else ""
    jobs = f"{len(runs)} job{'s' * (len(runs) != 1)}"
    console.note(f"{console.bold(array.array)}  {jobs}: {headline(plan)}{limit}")
    show_starts(plan)
    if array.after:
        console.note(f"  start       {waiting_for(array.after)}")
    if any(run.queued.exists() for run in runs):
        console.note("  rest        started in the background as others end")
    console.note(f"  run folders {runs[0].path.parent}")
    console.note(f"  look        clusterkit status {array.array}")
    console.note(f"  follow      clusterkit logs -f {array.array}/{array.sweep.elements[0].index}")
    console.note(f"  cancel      clusterkit cancel {array.array}")
    console.say(array.array)


def _report_failure(
    array: _Array, runs: Sequence[RunFolder], failure: Failure, *, as_json: bool
) -> None:
    """Say which jobs were submitted, which were not, and how to submit the others."""
    numbers = [element.index for element in array.sweep.elements]
    done, failed = numbers[: len(runs)], numbers[len(runs)]
    why = str(failure) or "interrupted"
    certain = isinstance(failure, UserError | RefusalError)
    rest = numbers[len(runs) :] if certain else numbers[len(runs) + 1 :]
    what = f"{array.array}: {len(done)} of {len(numbers)} jobs submitted ({fold_numbers(done)})"
    hints = [f"the rest: the same command with --elements {fold_numbers(rest)}"] if rest else []
    if not certain:
        hints.insert(0, f"whether job {failed} was accepted tells clusterkit status {array.array}")
    hints.append(f"or end what was submitted: clusterkit cancel {array.array}")
    if as_json:
        error = {"message": what, "reason": why, "hint": "\n".join(hints)}
        document = array_document(array.array, load_jobs(runs))
        console.json_document({**document, "not_submitted": rest, "error": error})
    console.error(f"job {failed}: {why}")
    console.error(f"{what}\nhint: " + "\n      ".join(hints))


def _show(
    sweep: Sweep, plans: Sequence[LaunchPlan], after: tuple[Dependency, ...], *, as_json: bool
) -> None:
    """Print a table of the jobs and the script of the first."""
    first = tied(plans[0], after)
    forecast = forecast_of(first)
    if as_json:
        elements = [
            {"index": element.index, "name": plan.name, "values": element.values}
            for element, plan in zip(sweep.elements, plans, strict=True)
        ]
        console.json_document(
            {
                "dry_run": True,
                "elements": elements,
                "at_once": sweep.at_once,
                "plan": first,
                "files": render(first),
                "forecast": forecast,
            }
        )
        exit_by(forecast)
        return
    rendered = render(first)

    def show() -> None:
        show_summary(first, rendered)
        _show_elements(sweep, plans)
        show_forecast(forecast)

    show_with_script(first, rendered, show)
    exit_by(forecast)


def _show_elements(sweep: Sweep, plans: Sequence[LaunchPlan]) -> None:
    """Print which jobs an array has, with their values."""
    limit = f", {sweep.at_once} at once" if sweep.at_once else ""
    jobs = f"{len(plans)} jobs{limit}; the script is that of the first"
    console.note(f"\n{jobs if len(plans) > 1 else f'1 job{limit}'}")
    rows = [
        (str(element.index), plan.name, *(element.values.get(key, "") for key in sweep.keys))
        for element, plan in zip(sweep.elements, plans, strict=True)
    ]
    # Of many, those in the middle are left out; a file may give any text.
    left = len(rows) - _SHOWN_FIRST - _SHOWN_LAST
    kept = [*rows[:_SHOWN_FIRST], *rows[-_SHOWN_LAST:]] if left > 1 else rows
    shown = [[cut(in_line(cell), _WIDEST) for cell in row] for row in kept]
    lines = table([("JOB", "NAME", *sweep.keys), *shown])
    if left > 1:
        lines.insert(1 + _SHOWN_FIRST, f"... {left} more")
    console.note(*lines)
