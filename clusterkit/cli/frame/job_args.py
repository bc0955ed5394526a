"""What the verbs about submitted jobs have in common: the JOB argument, the answer, exit codes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.main import EXIT_COULD_NOT, EXIT_FINDINGS
from clusterkit.config.load import load_settings
from clusterkit.core.model import JobState
from clusterkit.core.text import in_line, without_middle
from clusterkit.executors.run.runfolder import RunFolder, only_read
from clusterkit.executors.slurm import pending
from clusterkit.jobs.find import Named, find_run, find_runs, list_runs, run_roots, runs_of_others
from clusterkit.jobs.state.load import Job

JOB_HELP = "Job id, run name or its beginning, run folder, array id, ARRAY/INDEX, or `latest`."
JobArgument = Annotated[str, typer.Argument(help=JOB_HELP, metavar="JOB")]
JobOrNone = Annotated[str | None, typer.Argument(help=JOB_HELP, metavar="JOB", show_default=False)]

_WIDEST = 40
_LEAST = 12
_COLOURS = {
    JobState.SUCCEEDED: "green",
    JobState.RUNNING: "cyan",
    JobState.PENDING: "yellow",
    JobState.REQUEUED: "yellow",
    JobState.UNKNOWN: "magenta",
}


def run_named(word: str) -> RunFolder:
    """Return the run that the user means.

    Raises:
        UserError: there is none, or several.
    """
    return find_run(word, run_roots(load_settings().clusters.values()))


def runs_named(word: str) -> Named:
    """Return the run that the user means, or all of an array in order.

    Raises:
        UserError: there is none, or several that are not one array.
    """
    return find_runs(word, run_roots(load_settings().clusters.values()))


def note_owner(run: RunFolder) -> None:
    """Say of a run of somebody else whose it is, and that nothing was done with it."""
    foreign = run.foreign
    if foreign is not None:
        console.note(only_read(run, foreign))


def note_others() -> None:
    """Say how many runs of other users stand among those that are listed."""
    others = runs_of_others(run_roots(load_settings().clusters.values()))
    if others:
        count = f"{len(others)} run{'s' * (len(others) > 1)}"
        console.note(f"{count} of other users not shown; name one by its folder to look at it")


def all_runs() -> list[RunFolder]:
    """Return every run of this user on every cluster, oldest first."""
    return list_runs(run_roots(load_settings().clusters.values()))


def colour_of(job: Job) -> str:
    """Return the colour of a job's state."""
    return _COLOURS.get(job.status.state, "red")


def plain_state(job: Job) -> str:
    """Return the state of a job that is not over, with why it waits, without colours."""
    reason = reason_of(job)
    return f"{job.status.state.value}: {reason}" if reason else job.status.state.value


def state_text(job: Job) -> str:
    """Return the state of a job in one phrase, such as `failed (exit 3): n2 exited with 3`."""
    status = job.status
    text = console.coloured(status.state.value, colour_of(job))
    if status.exit_code:
        text += f" (exit {status.exit_code})"
    reason = reason_of(job)
    return f"{text}: {reason}" if reason else text


def reason_of(job: Job) -> str | None:
    """Return what is known beside the state of a job; of one that waits for Slurm, in words."""
    status, submission = job.status, job.submission
    waits = status.state in {JobState.PENDING, JobState.REQUEUED} and submission.kind.scheduled
    if not waits or not status.reason:
        return status.reason
    return pending.in_words(status.reason, submission.job_id or "JOB")


def values_text(job: Job, *, whole: bool = False) -> str:
    """Return the values that a job got from its array, `lr=1e-3 seed=0`, on one line.

    On a terminal long ones lose their middle, unless wanted whole: paths differ at the end.
    """
    values = job.submission.values
    room = max(_LEAST, _WIDEST // max(1, len(values)))
    if not whole and sys.stdout.isatty():
        values = {key: without_middle(value, room) for key, value in values.items()}
    return in_line(" ".join(f"{key}={value}" for key, value in values.items()))


def exit_code_of(job: Job) -> int:
    """Return the exit code of a verb that waited for this job."""
    if job.status.state is JobState.SUCCEEDED:
        return 0
    return EXIT_FINDINGS if job.status.state.final else EXIT_COULD_NOT
