"""What `clusterkit submit` shows of the checks that come before a job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from clusterkit.cli.frame import console
from clusterkit.jobs.submit.preflight import Listener, NotFitError

EXIT_FINDINGS = 1


@contextmanager
def listening() -> Iterator[Listener]:
    """Tell the user what is said on the way to the answer."""
    from clusterkit.cli.nodes.preflight_report import counting

    with counting(None) as heard:
        yield Listener(warn=console.warn, note=console.note, heard=heard)


@contextmanager
def showing_refusal(*, as_json: bool) -> Iterator[None]:
    """Show what preflight found where that keeps the job from being submitted.

    Raises:
        typer.Exit: it does.
    """
    try:
        yield
    except NotFitError as error:
        _show(error, as_json=as_json)
        raise typer.Exit(EXIT_FINDINGS) from error


def _show(error: NotFitError, *, as_json: bool) -> None:
    from clusterkit.cli.nodes.preflight_report import show

    if as_json:
        problem = error.problems[0]
        console.json_document(
            {
                "error": {"message": problem.message, "hint": problem.hint},
                "preflight": error.report.document(),
            }
        )
    else:
        show(error.report, say=console.note)
    console.error(str(error))
