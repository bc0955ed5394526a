"""`clusterkit wait` and `supervise`: see a job, or all jobs of an array, to the end."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from clusterkit.cli.diagnose.array import blocks, causes_of
from clusterkit.cli.diagnose.report import labelled, why_failed
from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag
from clusterkit.cli.frame.job_args import (
    JOB_HELP,
    JobArgument,
    exit_code_of,
    expected_start,
    note_owner,
    plain_state,
    state_text,
    unfinished_named,
    values_text,
)
from clusterkit.cli.frame.main import EXIT_INTERRUPTED
from clusterkit.core.model import JobState
from clusterkit.core.text import cut, in_words, table
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.document import (
    array_document,
    counted,
    full_document_of,
    label_of,
    name_of,
)
from clusterkit.jobs.logs import last_step_line
from clusterkit.jobs.start_queued import is_queued, may_need_client
from clusterkit.jobs.starter import leave_behind, starter_of
from clusterkit.jobs.state.load import Job, load_jobs
from clusterkit.jobs.watch import wait_for_all

_MOST_ROWS = 40
_STEP_WIDTH = 48
"""Characters of the last line of a training that a terminal gets; a pipe gets all."""
_QUIET = frozenset({JobState.SUCCEEDED, JobState.PENDING})
UNDER_WAY = frozenset({JobState.PENDING, JobState.RUNNING, JobState.REQUEUED})


JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB...", help=JOB_HELP)]


def wait(
    jobs: JobsArgument,
    json: JsonFlag = False,
) -> None:
    """Wait until jobs are over: exit 0 if all succeeded, 1 if not, 2 if nobody can tell."""
    if len(jobs) == 1:
        raise typer.Exit(_wait_for_named(jobs[0], as_json=json, verb="wait"))
    found = [named.runs for named in map(unfinished_named, jobs)]
    runs = tuple(dict.fromkeys(run for several in found for run in several))
    for run in runs:
        note_owner(run)
    raise typer.Exit(wait_for_runs(runs, named=shlex.join(jobs), as_json=json))


def supervise(
    job: JobArgument,
    json: JsonFlag = False,
) -> None:
    """Start a job over ssh, or one queued on this machine, when it may start; see it to its end.

    Over ssh it is restarted as often as --requeue and --restarts allow.

    `wait` and `logs -f` do the same; this is for a terminal multiplexer, or a unit of systemd.
    """
    raise typer.Exit(_wait_for_named(job, as_json=json, verb="supervise"))


def _wait_for_named(word: str, *, as_json: bool, verb: str) -> int:
    named = unfinished_named(word)
    runs = named.runs
    if named.array:
        return wait_for_runs(runs, array=named.array, as_json=as_json, verb=verb)
    if verb != "wait":
        runs[0].require_own(f"{verb} its job")
    note_owner(runs[0])
    return wait_for_runs(runs, as_json=as_json, verb=verb)


def wait_for_runs(
    runs: Sequence[RunFolder],
    *,
    array: str | None = None,
    named: str | None = None,
    as_json: bool = False,
    verb: str = "wait",
) -> int:
    """Wait for a job, every job of an array, or several; say how all ended, return the exit code.

    `verb`, and `named` of several jobs, is what the user has typed, and would type to come back.
    """

    def changed(job: Job) -> None:
        number = f"{array}/{job.submission.index} " if array else ""
        console.note(f"{number}{name_of(job)} {state_text(job)}{expected_start(job)}")

    began = time.monotonic()

    def looked(jobs: Sequence[Job]) -> None:
        what = counted(jobs) if array or named else f"{name_of(jobs[0])} {plain_state(jobs[0])}"
        show(f"{what}, {in_words(time.monotonic() - began)}")

    try:
        with console.progress(plain=False) as show:
            jobs = wait_for_all(runs, changed=changed, on_problem=console.warn, on_look=looked)
    except KeyboardInterrupt:
        # Nobody is asked for news: whoever types Ctrl-C may do so because no node answers.
        submission = runfolder.read_submission(runs[0])
        name = array or named or (submission and submission.job_id) or runs[0].key
        console.note(f"\n{name} is not over yet; come back: clusterkit {verb} {name}")
        if not leave_behind(runs) and any(map(may_need_client, runs)):
            console.note("until then nobody starts it when its time comes, or restarts it")
        return EXIT_INTERRUPTED
    if array is None:
        for job in jobs:
            why = why_failed(job)
            if named and why:
                console.note(*labelled("job", label_of(job), console.bold))
            console.note(*why)
    else:
        console.note(f"{array} {counted(jobs)}")
        console.note(*blocks(array, jobs, causes_of(jobs)))
    if as_json:
        several = array_document(array, jobs) if array or named else None
        console.json_document(several or full_document_of(jobs[0]))
    return worst(jobs)


def show_array(array: str, runs: Sequence[RunFolder], *, as_json: bool) -> int | None:
    """Print the state of every job of an array; return the exit code, None while one continues."""
    jobs = load_jobs(runs)
    if as_json:
        document = array_document(array, jobs)
        for job, told in zip(jobs, document["jobs"], strict=True):
            told["last_step_line"] = last_step_line(job.run)
        console.json_document(document)
    else:
        console.say(f"{console.bold(array)}  {counted(jobs)}")
        console.say(*_rows(jobs))
        queued = next((job for job in jobs if is_queued(job)), None)
        console.say(*(starter_lines(queued) if queued is not None else ()))
    return None if any(job.status.state in UNDER_WAY for job in jobs) else worst(jobs)


def starter_lines(job: Job) -> list[str]:
    """Return which process starts a queued job, or how to start it where there is none."""
    if not is_queued(job):
        return []
    starter = starter_of(job.run)
    if starter is None:
        return [f"  starter    none is running: clusterkit supervise {name_of(job)}"]
    why = f": {starter.problem}" if starter.problem else ""
    return [f"  starter    process {starter.pid} on {starter.host}{why}"]


def worst(jobs: Sequence[Job]) -> int:
    """Return 1 if any job failed, else 2 if the state of one is unknown, else 0."""
    codes = {exit_code_of(job) for job in jobs}
    return 1 if 1 in codes else max(codes, default=0)


def _rows(jobs: Sequence[Job]) -> list[str]:
    """Return one line per job; of very many only those about which there is something to say."""
    shown = list(jobs)
    if len(shown) > _MOST_ROWS:
        shown = [job for job in jobs if job.status.state not in _QUIET][-_MOST_ROWS:]
    values = [values_text(job) for job in shown]
    steps = [
        last_step_line(job.run, or_any=job.status.state is JobState.SUCCEEDED) or ""
        for job in shown
    ]
    if sys.stdout.isatty():
        steps = [cut(step, _STEP_WIDTH) for step in steps]
    cells = [
        (job.submission.index, name_of(job), job.submission.name)
        + ((value,) if any(values) else ())  # of older runs none are known
        + ((step,) if any(steps) else ())
        + (state_text(job),)
        for job, value, step in zip(shown, values, steps, strict=True)
    ]
    rows = [f"  {line}" for line in table(cells, ">", widths=(4,))]
    left = len(jobs) - len(shown)
    return [*rows, f"  and {left} more: --json lists all"] if left else rows
