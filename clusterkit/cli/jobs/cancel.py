"""`clusterkit cancel`: end jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag
from clusterkit.cli.frame.job_args import JOB_HELP, is_array, run_named, said
from clusterkit.cli.frame.main import EXIT_COULD_NOT
from clusterkit.core.errors import RemoteError
from clusterkit.core.model import JobState
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.document import document_of, name_of
from clusterkit.jobs.state.load import Job
from clusterkit.jobs.watch import cancel as end


def cancel(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help=JOB_HELP)],
    json: JsonFlag = False,
) -> None:
    """End jobs, pending or running, and wait until they are over."""
    # All are found before any is ended.
    found = [(word, _found(word)) for word in jobs]
    ended: list[Job] = []
    failed = False
    for word, runs in found:
        # The other jobs are to be ended all the same.
        over, well = _end(word, runs, quiet=json)
        ended += over
        failed = failed or not well
    if json:
        console.json_document({"jobs": [document_of(job) for job in ended]})
    if failed:
        raise typer.Exit(EXIT_COULD_NOT)


def _found(word: str) -> tuple[RunFolder, ...]:
    if not is_array(word):
        return (run_named(word),)
    from clusterkit.cli.jobs.arrays import runs_of

    return runs_of(word)


def _end(word: str, runs: tuple[RunFolder, ...], *, quiet: bool) -> tuple[list[Job], bool]:
    """End what one word names; return what is over, and whether all of it is."""
    if is_array(word):
        return _end_array(word, runs, quiet=quiet)
    try:
        job = end(runs[0])
    except RemoteError as error:
        console.error(str(error))
        return [], False
    if not quiet:
        over = "" if job.status.state is JobState.CANCELLED else "was over already: "
        console.say(f"{name_of(job)} {over}{said(job)}")
    return [job], True


def _end_array(array: str, runs: tuple[RunFolder, ...], *, quiet: bool) -> tuple[list[Job], bool]:
    from clusterkit.cli.jobs.arrays import counted
    from clusterkit.jobs.watch import cancel_all

    ended, troubles = cancel_all(runs)
    for trouble in troubles:
        console.error(trouble)
    if not quiet:
        console.say(f"{array} {counted(ended)}")
    return ended, not troubles
