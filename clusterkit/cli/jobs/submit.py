"""`clusterkit submit`: plan a job, write its run folder, hand it over."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag
from clusterkit.cli.frame.job_options import CONTEXT_SETTINGS, JobFlags, request_of, takes_job_flags
from clusterkit.cli.frame.main import EXIT_COULD_NOT, error_document
from clusterkit.cli.jobs.submit_options import (
    DryRunFlag,
    ExcludeUnfitFlag,
    ForceFlag,
    PreflightFlag,
    Wishes,
    remark_on_script,
)
from clusterkit.core.errors import UserError

if TYPE_CHECKING:
    from clusterkit.core.model import LaunchPlan
    from clusterkit.executors.base import UnconfirmedError
    from clusterkit.executors.run.runfolder import RunFolder, Submission
    from clusterkit.jobs.submit.request import JobRequest

__all__ = ["CONTEXT_SETTINGS", "submit"]


@takes_job_flags
def submit(
    flags: JobFlags,
    dry_run: DryRunFlag = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the job is over.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print the job's output until it is over.")
    ] = False,
    preflight: PreflightFlag = None,
    exclude_unfit: ExcludeUnfitFlag = False,
    force: ForceFlag = False,
    after: Annotated[
        list[str] | None,
        typer.Option(
            "--after",
            help="Start when that job, or all of an array, succeeded (ok), failed (fail) or ended "
            "in any way; repeatable.",
            metavar="JOB[:ok|any|fail]",
            show_default=False,
        ),
    ] = None,
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
    request = request_of(flags, verb="submit")
    wishes = Wishes(
        dry_run=dry_run,
        wait=wait,
        follow=follow,
        preflight=preflight or request.from_file.get("preflight"),
        exclude_unfit=exclude_unfit,
        force=force,
        json=json,
        after=tuple(after or request.from_file.get("after", ())),
    )
    sweep = request.sweep()
    if sweep is None:
        _submit_one(request, wishes)
    else:
        from clusterkit.cli.jobs.submit_array import submit_array

        submit_array(request, sweep, wishes)


def _submit_one(request: JobRequest, wishes: Wishes) -> None:
    from clusterkit.cli.jobs.submit_preflight import listening, showing_refusal
    from clusterkit.executors.base import UnconfirmedError
    from clusterkit.jobs.submit.hand_over import tied
    from clusterkit.jobs.submit.submit import prepare, start

    prepared = prepare(request, preflight=wishes.preflight, after=wishes.after)
    remark_on_script(prepared.plan)
    if wishes.dry_run:
        show_plan(tied(prepared.plan, prepared.after), as_json=wishes.json)
        return
    try:
        with showing_refusal(as_json=wishes.json), listening() as listener:
            plan, run, submission = start(
                prepared,
                exclude_unfit=wishes.exclude_unfit,
                force=wishes.force,
                listener=listener,
                command_line=sys.argv,
            )
    except UnconfirmedError as error:
        run = error.run
        _tell_unconfirmed(error, wishes)
    else:
        if wishes.json and not wishes.wait:
            _print_document(run)
        elif not wishes.json:
            _announce(plan, run, submission, brief=wishes.follow)
    if wishes.follow:
        from clusterkit.cli.jobs.logs import follow_run

        raise typer.Exit(follow_run(run))
    if wishes.wait:
        from clusterkit.cli.jobs.wait import wait_for_run

        raise typer.Exit(wait_for_run(run, as_json=wishes.json))


def _tell_unconfirmed(error: UnconfirmedError, wishes: Wishes) -> None:
    """Tell of a job that may or may not have been accepted; return where it is to be waited for.

    Raises:
        typer.Exit: it is not.
    """
    if wishes.wait or wishes.follow:
        console.warn(str(error))
        return
    if wishes.json:
        from clusterkit.jobs.document import document_of
        from clusterkit.jobs.state.load import load_job

        document = document_of(load_job(error.run))
        console.json_document({**document, "error": error_document(error)})
    console.error(str(error))
    raise typer.Exit(EXIT_COULD_NOT)


def _announce(plan: LaunchPlan, run: RunFolder, submission: Submission, *, brief: bool) -> None:
    from clusterkit.executors.run.dependencies import waiting_for
    from clusterkit.launch.render import summary

    job_id = submission.job_id or run.run_id
    console.note(f"{console.bold(job_id)}  {summary(plan)}, cluster {plan.cluster.name}")
    if submission.after:
        console.note(f"  starts      {waiting_for(submission.after)}")
        if run.held.exists():
            console.note(f"              if clusterkit supervise {job_id} (or wait) runs then")
    console.note(f"  run folder  {run.path}")
    if not brief:
        console.note(f"  follow      clusterkit logs -f {job_id}")
        console.note(f"  cancel      clusterkit cancel {job_id}")
        console.say(job_id)


def _print_document(run: RunFolder) -> None:
    from clusterkit.jobs.document import document_of
    from clusterkit.jobs.state.load import load_job

    console.json_document(document_of(load_job(run)))


def show_plan(plan: LaunchPlan, *, as_json: bool) -> None:
    """Print the script of a plan, and what would be done with it."""
    from clusterkit.core.model import ClusterKind
    from clusterkit.launch.render import render, summary

    rendered = render(plan)
    if as_json:
        console.json_document({"dry_run": True, "plan": plan, "files": rendered})
        return
    main = "job.sbatch" if plan.cluster.kind is ClusterKind.SLURM else "node.sh"
    text = next(file.text for file in rendered if file.name == main)
    sys.stdout.write(text)
    sys.stdout.flush()  # what is to be done next stays on the screen, below the script
    console.note(f"\n{console.bold(plan.name)}  {summary(plan)}, cluster {plan.cluster.name}")
    for name in plan.secrets:
        console.note(f"  secret      {name} ({'set' if name in os.environ else 'NOT SET'})")
    how = "sbatch job.sbatch" if main == "job.sbatch" else "bash node.sh, once per node"
    console.note(f"  would run   {how}, in {shlex.quote(plan.workdir)}")
    console.note("  submit it   the same command without --dry-run")
