"""`clusterkit supervise`: see a job to its end, and start it again as often as it may."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterkit.cli.job_args import JOB_HELP
from clusterkit.cli.wait import wait_for_named


def supervise(
    job: Annotated[str, typer.Argument(help=JOB_HELP, metavar="JOB")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Start a job over ssh when it may start, and again as often as --requeue allows, to its end.

    What `wait` and `logs -f` do as well; for a terminal multiplexer, or a unit of systemd.
    """
    raise typer.Exit(wait_for_named(job, as_json=json))
