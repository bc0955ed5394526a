"""What verbs that submit show: the plan, and what the checks before the job found."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.core.model import LaunchPlan, RenderedFile, ScriptKind
from clusterkit.core.text import limit_in_words, wrapped
from clusterkit.executors import executor_for
from clusterkit.executors.base import Forecast
from clusterkit.executors.slurm.limits import gpus_per_node
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
            show(error.report, concluded=False, say=console.note)  # the error says it
        console.error(str(error))
        raise typer.Exit(EXIT_FINDINGS) from error


def headline(plan: LaunchPlan) -> str:
    """Return what a plan starts, where, and for how long at most, in one line."""
    limit = f", limit {limit_in_words(plan.time_limit_s)}" if plan.time_limit_s else ""
    return f"{summary(plan)}, cluster {plan.cluster.name}{limit}"


def show_starts(plan: LaunchPlan) -> None:
    """Say how often a command without a launcher starts, and how to start it once per node."""
    if plan.framework != "env":
        return
    each, rest = divmod(plan.processes, plan.nodes)
    times = "once" if plan.processes == 1 else f"{plan.processes} times"
    if plan.nodes > 1:
        times += f", {'once for each slot' if rest else f'{each} on each node'}"
    launched = plan.script_kind in {ScriptKind.PYTHON, ScriptKind.MODULE}
    once = "; once per node: --set env.per-node=1"
    console.note(f"  runs        {times}{once * (plan.processes > plan.nodes and not launched)}")


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
    """Print what would be done with a plan, what its scheduler says of it, and its script.

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

    def show() -> None:
        show_summary(plan, rendered)
        show_forecast(forecast)

    show_with_script(plan, rendered, show)
    exit_by(forecast)


def show_with_script(
    plan: LaunchPlan, rendered: Sequence[RenderedFile], show: Callable[[], None]
) -> None:
    """Print a summary by `show`, and the script of a plan below it.

    Where both go into a pipe or a log, its end is what is read: there the summary comes last.
    """
    above = sys.stdout.isatty() or sys.stderr.isatty()
    if not above:
        show_script(plan, rendered)
    show()
    if above:
        show_script(plan, rendered)


def show_summary(plan: LaunchPlan, rendered: Sequence[RenderedFile]) -> None:
    """Print what a plan asks for, and what would be done with it."""
    console.note(f"{console.bold(plan.name)}  {headline(plan)}")
    show_starts(plan)
    if plan.cluster.kind.scheduled:
        console.note(f"  asks for    {_asked(plan)}")
    for name in plan.secrets:
        console.note(f"  secret      {name} ({'set' if name in os.environ else 'NOT SET'})")
    main = _main_file(plan)
    how = f"sbatch {main}" if plan.cluster.kind.scheduled else f"bash {main}, once per node"
    others = [file.name for file in rendered if file.name != main]
    console.note(f"  would write {main} and {len(others)} more to a new run folder")
    console.note(f"  would run   {how}, in {shlex.quote(plan.workdir)}")
    console.note("  submit it   the same command without --dry-run")


def _asked(plan: LaunchPlan) -> str:
    """Return what Slurm is asked for: `2 nodes, 8 GPUs, partition gpu, limit 5 min`."""
    nodes = plan.nodes + plan.spares
    gpus = sum((part.nodes + part.spares) * gpus_per_node(part.directives) for part in plan.parts)
    partitions = list(dict.fromkeys(part.directives.get("partition") for part in plan.parts))
    named = ",".join(name or "by default" for name in partitions)
    limit = limit_in_words(plan.time_limit_s) if plan.time_limit_s else "of the partition"
    return (
        f"{nodes} node{'s' * (nodes > 1)}, {gpus or 'no'} GPU{'s' * (gpus != 1)}, "
        f"partition {named}, time limit {limit}"
    )


def _main_file(plan: LaunchPlan) -> str:
    return "job.sbatch" if plan.cluster.kind.scheduled else "node.sh"


def show_script(plan: LaunchPlan, rendered: Sequence[RenderedFile]) -> None:
    """Print the script of a plan; on a terminal, how to see it."""
    main = _main_file(plan)
    text = next(file.text for file in rendered if file.name == main)
    if sys.stdout.isatty():  # where hundreds of lines would hide the rest
        console.note(f"  script      {main}, {text.count(chr(10))} lines: the same command | less")
        return
    sys.stderr.flush()
    sys.stdout.write(text)
    sys.stdout.flush()
