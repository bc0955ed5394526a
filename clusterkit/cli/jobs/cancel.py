"""`clusterkit cancel`: end the jobs that are named, or all that have not ended."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.job_args import (
    JOB_HELP,
    plain_state,
    state_text,
    unfinished_named,
)
from clusterkit.cli.frame.main import EXIT_COULD_NOT
from clusterkit.cli.jobs.choose import chosen_runs, states_named
from clusterkit.cli.jobs.wait import UNDER_WAY
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import JobState
from clusterkit.core.text import table
from clusterkit.jobs.document import counted, document_of, label_of, name_of
from clusterkit.jobs.find import SHOWN_CANDIDATES, Named, SeveralRunsError, begins_name
from clusterkit.jobs.state.load import Job, load_jobs
from clusterkit.jobs.watch import cancel as end
from clusterkit.jobs.watch import cancel_all

_WHOLE_NAMES = JOB_HELP.replace(" or its beginning", "")
_JobsOrNone = Annotated[
    list[str] | None, typer.Argument(metavar="[JOB]...", help=_WHOLE_NAMES, show_default=False)
]


@explained
def cancel(
    jobs: _JobsOrNone = None,
    all_jobs: bool = False,
    state: str | None = None,
    name: str | None = None,
    cluster: str | None = None,
    yes: bool = False,
    json: JsonFlag = False,
) -> None:
    """End jobs, pending or running, and wait until they are over."""
    words, filters = jobs or [], {"--state": state, "--name": name, "--cluster": cluster}
    _require_a_choice(words, {flag: text for flag, text in filters.items() if text}, all_jobs)
    if all_jobs:
        chosen = _not_ended(state, name, cluster)
        if len(chosen) > 1 and not yes:
            _ask(chosen, as_json=json)
        over, errors = cancel_all([job.run for job in chosen])
        _show(over, errors, as_json=json)
        if not chosen:
            console.note("no job to cancel; clusterkit status lists those that have ended")
    else:
        over, errors = [], []
        for named in _all_named(words):
            was_over = not named.array and named.runs[0].state.exists()
            ended, wrong = _end(named)
            _show(ended, wrong, array=named.array, was_over=was_over, as_json=json)
            over += ended
            errors += wrong
    if json:
        console.json_document({"jobs": [document_of(job) for job in over]})
    if errors:
        raise typer.Exit(EXIT_COULD_NOT)


def _require_a_choice(words: Sequence[str], filters: dict[str, str], all_jobs: bool) -> None:
    """Refuse a command line that names neither jobs nor `--all`, or both.

    Raises:
        UserError: with the command line that may be meant.
    """
    given = "".join(f" {flag} {shlex.quote(text)}" for flag, text in filters.items())
    if all_jobs and words:
        raise UserError(
            "--all is every job, and JOB is one", hint=f"clusterkit cancel {shlex.join(words)}"
        )
    if filters and not all_jobs:
        raise UserError(
            f"{', '.join(filters)} chooses among all jobs", hint=f"clusterkit cancel --all{given}"
        )
    if not words and not all_jobs:
        raise UserError(
            "missing argument 'JOB...'",
            hint="clusterkit cancel latest, or another of those that `clusterkit status` lists; "
            "--all ends all",
        )


def _not_ended(state: str | None, name: str | None, cluster: str | None) -> list[Job]:
    """Return this user's jobs that have not ended and that all of these choose.

    One whose state is unknown is only chosen by `--state unknown`.
    """
    states = states_named(state) or UNDER_WAY
    jobs = load_jobs(chosen_runs(cluster=cluster, name=name))
    unknown = sum(job.status.state is JobState.UNKNOWN for job in jobs)
    if unknown and JobState.UNKNOWN not in states:
        console.note(f"left alone: {unknown} of state unknown (--all --state unknown ends them)")
    return [job for job in jobs if job.status.state in states and not job.status.state.final]


def _ask(jobs: Sequence[Job], *, as_json: bool) -> None:
    """List what would be cancelled, and ask whether to; where nobody can be asked, refuse.

    Raises:
        UserError: nobody can be asked.
        typer.Abort: the answer is no.
    """
    rows = [(name_of(job), plain_state(job), job.submission.name) for job in jobs]
    console.note(*(f"  {line}" for line in table(rows)))
    if as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError(
            f"--all would cancel {len(jobs)} jobs, and nobody can be asked here",
            hint="add --yes to cancel all of them, or name those that you mean",
        )
    typer.confirm(f"Cancel these {len(jobs)} jobs?", default=False, abort=True, err=True)


def _all_named(words: Sequence[str]) -> list[Named]:
    """Return the runs that words name, all of which are found before any is ended.

    Raises:
        UserError: some of them name none; says that the others are not cancelled.
    """
    found: list[Named] = []
    errors: list[UserError] = []
    for word in words:
        try:
            found.append(_named(word))
        except UserError as error:
            errors.append(error)
    if errors and len(words) > 1:
        console.note("none of these jobs is cancelled:")
    if errors:
        raise UserError(problems=[problem for error in errors for problem in error.problems])
    return found


def _named(word: str) -> Named:
    """Return the runs that a word names: of several jobs of that name the one that is not over.

    The beginning of a name names jobs elsewhere; here nobody is to lose `train-big` to `train`.

    Raises:
        UserError: there is none, with `--all` where the word means all, or is a pattern.
    """
    try:
        named = unfinished_named(word)
    except SeveralRunsError:
        raise
    except UserError as error:
        if word != "all" and not set(word) & set("*?["):
            raise
        pattern = "" if word in {"all", "*"} else f" --name {shlex.quote(word)}"
        hint = f"clusterkit cancel --all{pattern}"
        raise UserError(f"{word}: not a job", hint=hint) from error
    if begins_name(word, named.runs[0]):
        only = load_jobs(named.runs)
        jobs = ", ".join(f"{label_of(job)} {job.status.state}" for job in only[:SHOWN_CANDIDATES])
        typed = named.array or " ".join(map(name_of, only))
        raise UserError(
            f"no job is called {word!r}; it is the beginning of {jobs}",
            hint=f"clusterkit cancel {typed}",
        )
    return named


def _end(named: Named) -> tuple[list[Job], list[str]]:
    """End what one word names; return what is over, and what went wrong."""
    if named.array:
        return cancel_all(named.runs)
    try:
        return [end(named.runs[0])], []
    except RemoteError as error:  # the other jobs are to be ended all the same
        return [], [str(error)]


def _show(
    over: Sequence[Job],
    errors: Sequence[str],
    *,
    array: str | None = None,
    was_over: bool = False,
    as_json: bool,
) -> None:
    """Say of each job, with its name, that it is cancelled, or how it had ended already."""
    for error in errors:
        console.error(error)
    if as_json:
        return
    if array:
        console.say(f"{array} {counted(over)}")
        return
    for job in over:
        already = "was over already: " if job.status.state.final else ""
        if job.status.state is JobState.CANCELLED and not was_over:
            already = ""
        console.say(f"{label_of(job)} {already}{state_text(job)}")
