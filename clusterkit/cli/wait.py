"""`clusterkit wait`: return when a job is over."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterkit.cli import console
from clusterkit.cli.job_args import JOB_HELP, exit_code_of, is_array, name_of, run_named, said
from clusterkit.cli.last_words import full_document_of, last_words
from clusterkit.cli.main import EXIT_INTERRUPTED
from clusterkit.jobs import Job
from clusterkit.jobs import wait as wait_for
from clusterkit.runfolder import RunFolder


def wait(
    job: Annotated[str, typer.Argument(help=JOB_HELP, metavar="JOB")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Wait until a job is over: exit 0 if it succeeded, 1 if not, 2 if nobody can tell."""
    raise typer.Exit(wait_for_named(job, as_json=json))


def wait_for_named(word: str, *, as_json: bool) -> int:
    """Wait for the job, or for all jobs of the array, that the user means."""
    if is_array(word):
        from clusterkit.cli.arrays import runs_of, wait_for_array

        return wait_for_array(word, runs_of(word), as_json=as_json)
    return wait_for_run(run_named(word), as_json=as_json)


def wait_for_run(run: RunFolder, *, as_json: bool = False) -> int:
    """Wait for a job, say how it ended, and return the exit code of the verb."""

    def changed(job: Job) -> None:
        console.note(f"{name_of(job)} {said(job)}")

    try:
        job = wait_for(run, changed=changed, troubled=console.warn)
    except KeyboardInterrupt:
        console.note(f"\nthe job goes on; come back: clusterkit wait {run.run_id}")
        return EXIT_INTERRUPTED
    for line in last_words(job):
        console.note(line)
    if as_json:
        console.json_document(full_document_of(job))
    return exit_code_of(job)
