"""`clusterkit supervise`: see a job to its end, and start it again as often as it may."""

from __future__ import annotations

import typer

from clusterkit.cli.frame.flags import JsonFlag
from clusterkit.cli.frame.job_args import JobArgument
from clusterkit.cli.jobs.wait import wait_for_named


def supervise(
    job: JobArgument,
    json: JsonFlag = False,
) -> None:
    """Start a job over ssh, or one held on this machine, when it may start; see it to its end.

    Over ssh it is started again as often as --requeue allows.

    `wait` and `logs -f` do the same; this is for a terminal multiplexer, or a unit of systemd.
    """
    raise typer.Exit(wait_for_named(job, as_json=json, verb="supervise"))
