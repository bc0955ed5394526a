"""`clusterkit cancel`: end jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterkit.cli import console
from clusterkit.cli.job_args import JOB_HELP, document_of, name_of, run_named, said
from clusterkit.cli.main import EXIT_COULD_NOT
from clusterkit.errors import RemoteError
from clusterkit.jobs import cancel as end


def cancel(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help=JOB_HELP)],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """End jobs, pending or running, and wait until they are over."""
    runs = [run_named(word) for word in jobs]
    ended = []
    failed = False
    for run in runs:
        try:
            job = end(run)
        except RemoteError as error:
            # The other jobs are to be ended all the same.
            console.error(str(error))
            failed = True
            continue
        ended.append(job)
        if not json:
            console.say(f"{name_of(job)} {said(job)}")
    if json:
        console.json_document({"jobs": [document_of(job) for job in ended]})
    if failed:
        raise typer.Exit(EXIT_COULD_NOT)
