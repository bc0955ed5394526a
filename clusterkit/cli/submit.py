"""`clusterkit submit`: plan a job, write its run folder, hand it over."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clusterkit.cli import console
from clusterkit.cli.job_flags import CONTEXT_SETTINGS, JobFlags, takes_job_flags
from clusterkit.errors import UserError

if TYPE_CHECKING:
    from clusterkit.cli.submit_gate import Passed
    from clusterkit.model import LaunchPlan, RenderedFile
    from clusterkit.runfolder import RunFolder, Submission
    from clusterkit.shell import Secret

__all__ = ["CONTEXT_SETTINGS", "submit"]


@takes_job_flags
def submit(
    flags: JobFlags,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be submitted; submit nothing.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the job is over.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print the job's output until it is over.")
    ] = False,
    preflight: Annotated[
        str | None,
        typer.Option(
            "--preflight",
            help="What to check first: auto (the cluster's default), full or off. "
            "`clusterkit explain preflight` says more.",
            metavar="auto|full|off",
            show_default=False,
        ),
    ] = None,
    exclude_unfit: Annotated[
        bool,
        typer.Option(
            "--exclude-unfit", help="Go on without nodes that are not fit, if enough are left."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Submit whatever preflight finds.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run a training script on every node of a cluster.

    Everything after SCRIPT belongs to the script.

    Exit code with --wait or --follow: 0 the job succeeded, 1 it did not.
    """
    from clusterkit.cli.job_request import read_request
    from clusterkit.cli.submit_gate import chosen_mode, pass_gate
    from clusterkit.model import ContainerRuntime
    from clusterkit.render import render

    if json and follow:
        raise UserError(
            "--follow prints the job's output, and --json one document",
            hint="submit --json --wait, then clusterkit logs JOB",
        )
    request = read_request(flags, verb="submit")
    plan = request.plan()
    with request.placing():
        mode = chosen_mode(preflight or request.from_file.get("preflight"), plan)
    if plan.container is None:  # an image may have a script that this machine has not
        with request.placing():
            _require_script(plan.script)
    elif plan.container.runtime is ContainerRuntime.PYXIS and not dry_run:
        raise UserError(
            "submit cannot run its worker inside a pyxis image yet",
            hint="clusterkit render with the same flags, then sbatch rendered/job.sbatch",
        )
    rendered = render(plan)
    if dry_run:
        _show(plan, rendered, as_json=json)
        return
    from clusterkit.cli.job_python import require_package

    require_package(plan)
    passed = pass_gate(request, plan, mode, exclude_unfit=exclude_unfit, force=force, as_json=json)
    if passed.plan is not plan:
        plan, rendered = passed.plan, render(passed.plan)
    run, submission = _hand_over(plan, rendered, passed)
    if json and not wait:
        _print_document(run)
    elif not json:
        _announce(plan, run, submission, brief=follow)
    if follow:
        from clusterkit.cli.logs import follow_run

        raise typer.Exit(follow_run(run))
    if wait:
        from clusterkit.cli.wait import wait_for_run

        raise typer.Exit(wait_for_run(run, as_json=json))


def _require_script(script: str) -> None:
    path = Path(script)
    if path.is_file():
        return
    if path.is_dir():
        raise UserError(
            f"{script} is a folder", hint="name the training script in it", key="script"
        )
    beside = path.parent.glob("*.py") if path.parent.is_dir() else ()
    close = difflib.get_close_matches(path.name, [other.name for other in beside], n=1)
    raise UserError(
        f"script {script} does not exist",
        hint=f"did you mean {path.parent / close[0]}?" if close else f"looked in {Path.cwd()}",
        key="script",
    )


def _hand_over(
    plan: LaunchPlan, rendered: tuple[RenderedFile, ...], passed: Passed
) -> tuple[RunFolder, Submission]:
    from clusterkit import runfolder
    from clusterkit.executors import executor_for, submit_plan

    if passed.checks_limits:
        executor_for(plan.cluster.kind).check_limits(plan)
    run = runfolder.create(plan.cluster, plan.name)
    submission, launched = submit_plan(
        plan,
        rendered,
        run,
        secrets=_secrets(plan),
        command_line=sys.argv,
        documents=passed.documents,
    )
    for message in launched.messages:
        console.note(message)
    return run, submission


def _secrets(plan: LaunchPlan) -> dict[str, Secret]:
    from clusterkit.shell import Secret

    return {name: Secret(os.environ[name]) for name in plan.secrets if name in os.environ}


def _announce(plan: LaunchPlan, run: RunFolder, submission: Submission, *, brief: bool) -> None:
    from clusterkit.render import summary

    job_id = submission.job_id or run.run_id
    console.note(f"{console.bold(job_id)}  {summary(plan)}, cluster {plan.cluster.name}")
    console.note(f"  run folder  {run.path}")
    if not brief:
        console.note(f"  follow      clusterkit logs -f {job_id}")
        console.note(f"  cancel      clusterkit cancel {job_id}")
        console.say(job_id)


def _print_document(run: RunFolder) -> None:
    from clusterkit.cli.job_args import document_of
    from clusterkit.jobs.state import load_job

    console.json_document(document_of(load_job(run)))


def _show(plan: LaunchPlan, rendered: tuple[RenderedFile, ...], *, as_json: bool) -> None:
    from clusterkit.model import ClusterKind
    from clusterkit.render import summary

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
