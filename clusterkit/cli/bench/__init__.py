"""`clusterkit bench`: measure what the nodes of a job reach."""

from __future__ import annotations

import typer

from clusterkit.cli.bench.allreduce import allreduce
from clusterkit.cli.bench.scaling import scaling
from clusterkit.cli.frame.job_options import CONTEXT_SETTINGS

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def bench() -> None:
    """Measure what the nodes of a job reach, and compare it with what is expected."""


app.command("allreduce")(allreduce)
app.command("scaling", context_settings=CONTEXT_SETTINGS)(scaling)
