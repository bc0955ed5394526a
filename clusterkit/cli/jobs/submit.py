"""`clusterkit submit`: plan a job, write its run folder, hand it over."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.job_options import (
    CONTEXT_SETTINGS,
    DryRunFlag,
    refuse_dry_run_behind,
    request_of,
    takes_job_options,
    warn_of_script,
)
from clusterkit.cli.frame.main import EXIT_COULD_NOT, error_document
from clusterkit.core.errors import UserError

if TYPE_CHECKING:
    from clusterkit.core.model import LaunchPlan
    from clusterkit.executors.base import UnconfirmedError
    from clusterkit.executors.run.runfolder import RunFolder, Submission
    from clusterkit.jobs.submit.request import JobRequest

__all__ = ["CONTEXT_SETTINGS", "submit"]


@takes_job_options()
@explained
def submit(
    options: Mapping[str, Any],
    dry_run: DryRunFlag = False,
    wait: bool = False,
    follow: bool = False,
    json: JsonFlag = False,
) -> None:
    """Run a training script on every node of a cluster.

    Everything after SCRIPT belongs to the script.

    Exit code with --wait or --follow: 0 the job succeeded, 1 it did not.
    """
    if json and follow:
        raise UserError(
            "--follow prints the job's output, and --json one document",
            hint="submit --json --wait, then clusterkit logs JOB",
        )
    request = request_of(options, verb="submit")
    sweep = request.sweep()
    if sweep is None:
        _submit_one(request, dry_run=dry_run, wait=wait, follow=follow, as_json=json)
        return
    if follow:
        raise UserError(
            "--follow prints the output of one job, and this is an array",
            hint="--wait, or clusterkit logs -f ARRAY/0",
        )
    from clusterkit.cli.jobs.submit_array import submit_array

    submit_array(request, sweep, dry_run=dry_run, wait=wait, as_json=json)


def _submit_one(
    request: JobRequest, *, dry_run: bool, wait: bool, follow: bool, as_json: bool
) -> None:
    from clusterkit.cli.jobs.submit_output import listening, show_plan, showing_refusal
    from clusterkit.executors.base import UnconfirmedError
    from clusterkit.jobs.submit.hand_over import tied
    from clusterkit.jobs.submit.submit import prepare, start

    prepared = prepare(request)
    warn_of_script(prepared.plan)
    if dry_run:
        show_plan(tied(prepared.plan, prepared.after), as_json=as_json)
        return
    refuse_dry_run_behind(prepared.plan)
    try:
        with showing_refusal(as_json=as_json), listening() as callbacks:
            plan, run, submission = start(prepared, callbacks=callbacks, command_line=sys.argv)
    except UnconfirmedError as error:
        run = error.run
        _tell_unconfirmed(error, waited_for=wait or follow, as_json=as_json)
    else:
        if as_json and not wait:
            console.json_document(_document(run))
        elif not as_json:
            _announce(plan, run, submission, brief=follow)
    if follow:
        from clusterkit.cli.jobs.logs import follow_run

        raise typer.Exit(follow_run(run))
    if wait:
        from clusterkit.cli.jobs.wait import wait_for_runs

        raise typer.Exit(wait_for_runs([run], as_json=as_json))


def _tell_unconfirmed(error: UnconfirmedError, *, waited_for: bool, as_json: bool) -> None:
    """Tell of a job that may or may not have been accepted; return where it is to be waited for.

    Raises:
        typer.Exit: it is not.
    """
    if waited_for:
        console.warn(str(error))
        return
    if as_json:
        console.json_document({**_document(error.run), "error": error_document(error)})
    console.error(str(error))
    raise typer.Exit(EXIT_COULD_NOT)


def _announce(plan: LaunchPlan, run: RunFolder, submission: Submission, *, brief: bool) -> None:
    from clusterkit.cli.jobs.submit_output import headline, show_starts
    from clusterkit.executors.run.dependencies import waiting_for

    job_id = submission.job_id or run.run_id
    console.note(f"{console.bold(job_id)}  {headline(plan)}")
    show_starts(plan)
    if submission.after:
        console.note(f"  starts      {waiting_for(submission.after)}")
        if run.queued.exists():
            console.note("              started in the background then")
    console.note(f"  run folder  {run.path}")
    if not brief:
        console.note(f"  follow      clusterkit logs -f {job_id}")
        console.note(f"  cancel      clusterkit cancel {job_id}")
        console.say(job_id)


def _document(run: RunFolder) -> dict[str, Any]:
    from clusterkit.jobs.document import document_of
    from clusterkit.jobs.state.load import load_job

    return document_of(load_job(run))
