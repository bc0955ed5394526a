"""What the verbs about submitted jobs have in common: the JOB argument, the answer, exit codes."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.main import EXIT_COULD_NOT, EXIT_FINDINGS
from clusterkit.config.load import load_settings
from clusterkit.core.model import JobState
from clusterkit.core.text import in_line, in_words, table, without_middle
from clusterkit.executors.run.runfolder import RunFolder, only_read
from clusterkit.executors.slurm import pending
from clusterkit.jobs.document import name_of
from clusterkit.jobs.find import (
    SHOWN_CANDIDATES,
    Named,
    SeveralRunsError,
    find_run,
    find_runs,
    list_runs,
    run_roots,
    runs_of_others,
)
from clusterkit.jobs.state.load import Job, load_jobs

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


Fits = Callable[[Job], bool]


def run_named(word: str, fits: Fits | None = None, does: str = "") -> RunFolder:
    """Return the run that the user means; of several of a name the one job that `fits`.

    Which, and what it `does`, is said then.

    Raises:
        UserError: there is none, or several: they are listed.
    """
    try:
        return find_run(word, run_roots(load_settings().clusters.values()))
    except SeveralRunsError as error:
        return _only(word, error, fits, does)


def runs_named(word: str, fits: Fits | None = None, does: str = "") -> Named:
    """Return the run that the user means, or all of an array in order; see `run_named`.

    Raises:
        UserError: there is none, or several that are not one array.
    """
    try:
        return find_runs(word, run_roots(load_settings().clusters.values()))
    except SeveralRunsError as error:
        return Named(runs=(_only(word, error, fits, does),))


def unfinished_named(word: str) -> Named:
    """Return the runs that the user means: of several of a name the one job that is not over.

    Raises:
        UserError: there is none, or several that are not one array.
    """
    return runs_named(word, lambda job: not job.status.state.final, "is not over")


def _only(word: str, error: SeveralRunsError, fits: Fits | None, does: str) -> RunFolder:
    """Return the run of the one job of several of that name that `fits`, and say which.

    Raises:
        SeveralRunsError: none of them does, or several do; with their ids, states and ages.
    """
    jobs = load_jobs(error.runs)
    meant = [job for job in jobs if fits is not None and fits(job)]
    if len(meant) != 1:
        raise SeveralRunsError(word, error.runs, _choice(word, jobs)) from error
    console.note(f"{word}: of {len(error.runs)} jobs, {name_of(meant[0])} {does}")
    return meant[0].run


def _choice(word: str, jobs: Sequence[Job]) -> str | None:
    """Return what to type to name one of these jobs, and the newest with their states."""
    if not jobs:
        return None
    newest = jobs[: -SHOWN_CANDIDATES - 1 : -1]
    typed = [name_of(newest[0]) if one == word else one for one in sys.argv[1:]]
    command = typed if typed != sys.argv[1:] else ["status", name_of(newest[0])]
    now = time.time()
    alike = len({job.submission.name for job in newest}) == 1
    rows = [
        (
            name_of(job),
            *(() if alike else (job.submission.name,)),
            job.status.state,
            f"{in_words(now - job.submission.submitted_at)} ago",
        )
        for job in newest
    ]
    more = len(jobs) > len(newest)
    lines = [
        f"by its job id: {shlex.join(['clusterkit', *command])}",
        *table(rows, "<<>" if alike else "<<<>"),
    ]
    lines += [f"and {len(jobs) - len(newest)} older: clusterkit status {shlex.quote(word)}"] * more
    return "\n  ".join(lines)


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
    if status.exit_code and status.state is not JobState.CANCELLED:  # of who was told to end
        text += f" (exit {status.exit_code})"
    reason = reason_of(job)
    return f"{text}: {reason}" if reason else text


_BEFORE = {
    JobState.SUCCEEDED: "has",
    JobState.FAILED: "has",
    JobState.TIMEOUT: "ended by",
    JobState.PENDING: "is",
    JobState.RUNNING: "is",
    JobState.UNKNOWN: "is in state",
}


def sentence_of(job: Job) -> str:
    """Return what became of a job as the end of a sentence: `has succeeded`, `was cancelled`."""
    return f"{_BEFORE.get(job.status.state, 'was')} {state_text(job)}"


def expected_start(job: Job) -> str:
    """Return `; expected start 11-30 21:04` for a job that waits, where Slurm says when."""
    status = job.status
    if status.state not in {JobState.PENDING, JobState.REQUEUED} or status.expected_at is None:
        return ""
    start = datetime.fromtimestamp(status.expected_at, tz=UTC).astimezone()
    return f"; expected start {start:%m-%d %H:%M}"


def reason_of(job: Job) -> str | None:
    """Return what is known beside the state of a job; of one that waits for Slurm, in words."""
    status, submission = job.status, job.submission
    if not status.reason or not submission.kind.scheduled:
        return status.reason
    job_id = submission.job_id or "JOB"
    if status.state in {JobState.PENDING, JobState.REQUEUED}:
        return pending.in_words(status.reason, job_id)
    if status.state is JobState.CANCELLED and pending.meaning(status.reason, job_id):
        return f"it still waited to start ({status.reason})"
    return status.reason


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
