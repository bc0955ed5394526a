"""What verbs that submit show: the plan, and what the checks before the job found."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.core.model import LaunchPlan, RenderedFile
from clusterkit.core.text import limit_in_words, wrapped
from clusterkit.executors import executor_for
from clusterkit.executors.base import Forecast
from clusterkit.jobs.submit.preflight import PreflightFailedError, SubmitCallbacks
from clusterkit.launch.render import render, summary

if TYPE_CHECKING:
    from clusterkit.transport.base import Reply


@contextmanager
def listening() -> Iterator[SubmitCallbacks]:
    """Print warnings and progress on the way to the answer."""
    with console.progress() as show:
        answered = console.counter(show)

        def on_reply(reply: Reply) -> None:
            if reply.reach.problem is None:
                answered(reply)

        yield SubmitCallbacks(warn=console.warn, note=console.note, on_reply=on_reply, show=show)


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


def headline(plan: LaunchPlan) -> str:
    """Return what a plan starts, where, and for how long at most, in one line."""
    limit = f", limit {limit_in_words(plan.time_limit_s)}" if plan.time_limit_s else ""
    each, rest = divmod(plan.processes, plan.nodes)
    started = f", {each} per node" * (plan.framework == "env" and not rest)
    return f"{summary(plan)}{started}, cluster {plan.cluster.name}{limit}"


def forecast_of(plan: LaunchPlan) -> Forecast | None:
    """Return what the scheduler of the plan's cluster says of it; None where there is none."""
    main = next((file.text for file in render(plan) if file.name == "job.sbatch"), "")
    return executor_for(plan.cluster.kind).forecast(plan, main)


def show_forecast(forecast: Forecast | None) -> None:
    """Print when and where a job would start, what it exceeds, and what would delay it."""
    if forecast is None:
        return
    if forecast.starts_at is not None:
        start = datetime.fromtimestamp(forecast.starts_at, tz=UTC).astimezone()
        console.note(f"  would start {start:%m-%d %H:%M} on {forecast.nodes}, as of now")
    elif forecast.unknown is not None:
        console.note(*wrapped(f"would start not known: {forecast.unknown}", "  ", " " * 4))
    for text in forecast.notes:
        console.warn(text)
    for problem in forecast.problems:
        hint = f"\nhint: {problem.hint}" if problem.hint else ""
        console.error(problem.message + hint)


def exit_by(forecast: Forecast | None) -> None:
    """Leave with the exit code of findings where the scheduler would refuse the job.

    Raises:
        typer.Exit: it would, or the job could never start.
    """
    if forecast is not None and forecast.problems:
        raise typer.Exit(EXIT_FINDINGS)


def show_plan(plan: LaunchPlan, *, as_json: bool) -> None:
    """Print the script of a plan, what would be done with it, and what its scheduler says of it.

    Raises:
        typer.Exit: as `exit_by`.
    """
    rendered = render(plan)
    forecast = forecast_of(plan)
    if as_json:
        told = {"dry_run": True, "plan": plan, "files": rendered, "forecast": forecast}
        console.json_document(told)
        exit_by(forecast)
        return
    show_script(plan, rendered)
    show_forecast(forecast)
    exit_by(forecast)


def show_script(plan: LaunchPlan, rendered: Sequence[RenderedFile]) -> None:
    """Print the script of a plan, but on a terminal, and what would be done with it."""
    main = "job.sbatch" if plan.cluster.kind.scheduled else "node.sh"
    text = next(file.text for file in rendered if file.name == main)
    if not (on_terminal := sys.stdout.isatty()):  # where hundreds of lines would hide the rest
        sys.stdout.write(text)
        sys.stdout.flush()
    console.note(f"\n{console.bold(plan.name)}  {headline(plan)}")
    for name in plan.secrets:
        console.note(f"  secret      {name} ({'set' if name in os.environ else 'NOT SET'})")
    if on_terminal:
        console.note(f"  script      {main}, {text.count(chr(10))} lines: the same command | less")
    how = "sbatch job.sbatch" if main == "job.sbatch" else "bash node.sh, once per node"
    console.note(f"  would run   {how}, in {shlex.quote(plan.workdir)}")
    console.note("  submit it   the same command without --dry-run")
