"""What verbs that submit show: the plan, and what the checks before the job found."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.core.model import LaunchPlan
from clusterkit.jobs.submit.preflight import PreflightFailedError, SubmitCallbacks
from clusterkit.launch.render import render, summary


@contextmanager
def listening() -> Iterator[SubmitCallbacks]:
    """Print warnings and progress on the way to the answer."""
    with console.counting(None) as on_reply:
        yield SubmitCallbacks(warn=console.warn, note=console.note, on_reply=on_reply)


@contextmanager
def showing_refusal(*, as_json: bool) -> Iterator[None]:
    """Show what preflight found where that keeps the job from being submitted.

    Raises:
        typer.Exit: it does.
    """
    try:
        yield
    except PreflightFailedError as error:
        from clusterkit.cli.nodes.preflight_report import show

        if as_json:
            problem = error.problems[0]
            shown = {"message": problem.message, "hint": problem.hint}
            console.json_document({"error": shown, "preflight": error.report.document()})
        else:
            show(error.report, say=console.note)
        console.error(str(error))
        raise typer.Exit(EXIT_FINDINGS) from error


def show_plan(plan: LaunchPlan, *, as_json: bool) -> None:
    """Print the script of a plan, and what would be done with it."""
    rendered = render(plan)
    if as_json:
        console.json_document({"dry_run": True, "plan": plan, "files": rendered})
        return
    main = "job.sbatch" if plan.cluster.kind.scheduled else "node.sh"
    text = next(file.text for file in rendered if file.name == main)
    sys.stdout.write(text)
    sys.stdout.flush()  # what is to be done next stays on the screen, below the script
    console.note(f"\n{console.bold(plan.name)}  {summary(plan)}, cluster {plan.cluster.name}")
    for name in plan.secrets:
        console.note(f"  secret      {name} ({'set' if name in os.environ else 'NOT SET'})")
    how = "sbatch job.sbatch" if main == "job.sbatch" else "bash node.sh, once per node"
    console.note(f"  would run   {how}, in {shlex.quote(plan.workdir)}")
    console.note("  submit it   the same command without --dry-run")
