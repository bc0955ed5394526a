"""`clusterkit bench scaling`: how much faster a script is on more nodes, and why not faster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.job_options import request_of, takes_job_options, warn_of_script
from clusterkit.cli.frame.main import (
    EXIT_COULD_NOT,
    EXIT_FINDINGS,
    EXIT_INTERRUPTED,
    error_document,
)
from clusterkit.core import files
from clusterkit.core.errors import ClusterkitError, UserError
from clusterkit.launch.options import job_options

if TYPE_CHECKING:
    from clusterkit.estimate.machines.interconnects import Network
    from clusterkit.executors.run.runfolder import RunFolder
    from clusterkit.observe.bench.scaling.measure import MeasureOptions
    from clusterkit.observe.bench.scaling.result import Cause, Ladder, Row, Scaling, Size

    Causes = Mapping[int, tuple[Cause, ...]]

_STEPS = 100
_SECONDS = 60

_NOT_FOR_ONE_RUN = frozenset(
    {"after", "array", "at_once", "component", "elements"}
    | {"processes", "requeue", "restarts", "spares"}
)
_JOB = tuple(name for name in job_options() if name not in _NOT_FOR_ONE_RUN)


@takes_job_options(*_JOB)
@explained
def scaling(
    options: Mapping[str, Any],
    at: str | None = None,
    by: str | None = None,
    steps: int | None = None,
    seconds: int | None = None,
    warmup: int = 10,
    patience: int = 600,
    global_batch: bool = False,
    interconnect: str | None = None,
    plot: Path | None = None,
    html: Path | None = None,
    json: JsonFlag = False,
) -> None:
    """Run a script on more and more nodes, and tell how well it scales.

    Each size is a job, which ends once enough steps were seen. The script prints
    its speed, such as `step 60 samples/s 431.2`; so do most trainers.

    Exit code 1 if a run failed, hung or falls short of 90 % of what its size
    should give, or a node is behind the others; 2 if none could be measured,
    and that not because a job failed.
    """
    from clusterkit.estimate.machines.interconnects import interconnect_named
    from clusterkit.observe.bench.scaling.causes import causes_of
    from clusterkit.observe.bench.scaling.measure import MeasureOptions
    from clusterkit.observe.bench.scaling.rates import Bounds
    from clusterkit.observe.bench.scaling.result import ladder

    _check_places(plot, html)
    network = interconnect_named(interconnect) if interconnect is not None else None
    request = request_of(options, verb="bench scaling")
    jobs = ladder(request, by=by, at=at)
    warn_of_script(jobs.plan)
    if steps is None and seconds is None:
        steps, seconds = _STEPS, _SECONDS
    measuring = MeasureOptions(
        bounds=Bounds(warmup=warmup, steps=steps, seconds=seconds),
        timeout_s=patience,
        global_batch=global_batch,
        command_line=tuple(sys.argv),
    )
    found, failure, interrupted = _run(jobs, measuring, network)
    causes = {row.size.count: causes_of(found, row) for row in found.rows}
    failures = _tell(found, causes, failure, plot=plot, html=html, as_json=json)
    for one in failures:
        console.error(str(one))
    if failures:
        raise typer.Exit(EXIT_COULD_NOT)
    raise typer.Exit(EXIT_INTERRUPTED if interrupted else _exit_code(found, causes))


def _check_places(plot: Path | None, html: Path | None) -> None:
    """Refuse what could not be written after all the runs."""
    if plot is not None:
        from clusterkit.core.html import require_drawing

        require_drawing(plot)
    for path in filter(None, (plot, html)):
        files.require_place(path)


def _run(
    jobs: Ladder, measuring: MeasureOptions, network: Network | None
) -> tuple[Scaling, ClusterkitError | None, bool]:
    """Return what was measured, also where that came to an end of its own."""
    from clusterkit.cli.jobs.submit_output import listening
    from clusterkit.observe.bench.scaling.measure import measure
    from clusterkit.observe.bench.scaling.result import Scaling, in_words

    def started(size: Size, run: RunFolder) -> None:
        console.progress_note(f"{in_words(jobs.by, size.count)}: {run.path}")

    rows: list[Row] = []
    failure: ClusterkitError | None = None
    interrupted = False
    try:
        with listening() as callbacks:
            for row in measure(jobs, measuring, callbacks=callbacks, started=started):
                rows.append(row)
                _progress(jobs, row)
    except KeyboardInterrupt:
        interrupted = True
        console.note("\ninterrupted; the job that ran has been cancelled")
    except ClusterkitError as error:
        failure = error
    plan = jobs.plan
    found = Scaling(
        script=plan.script,
        framework=plan.framework,
        cluster=plan.cluster.name,
        shares_machine=plan.cluster.kind.shares_machine,
        by=jobs.by,
        rows=tuple(rows),
        interrupted=interrupted,
        interconnect=network.name if network else None,
        node_bytes_per_s=network.node_gbs(max(plan.slots)) * 1e9 if network else None,
    )
    return found, failure, interrupted


def _progress(jobs: Ladder, row: Row) -> None:
    from clusterkit.observe.bench.scaling.rates import UNITS
    from clusterkit.observe.bench.scaling.result import figure, in_words

    unit = next((unit for unit in UNITS if unit in row.rates), None)
    text = f"{figure(row.rates[unit].per_s)} {unit}/s" if unit else row.problem.splitlines()[0]
    console.progress_note(f"{in_words(jobs.by, row.size.count)}: {text}")


def _tell(
    found: Scaling,
    causes: Causes,
    failure: ClusterkitError | None,
    *,
    plot: Path | None,
    html: Path | None,
    as_json: bool,
) -> list[ClusterkitError]:
    """Print what was measured and write the files; return what went wrong, `failure` first.

    What was measured is printed whatever comes of the files.
    """
    from clusterkit.cli.bench.report import scaling_lines
    from clusterkit.observe.bench.scaling.result import document

    failures = [failure] if failure is not None else []
    if not as_json:
        console.say(*scaling_lines(found, causes) if found.rows else ())
        return [*failures, *_write(found, causes, plot=plot, html=html)]
    try:
        failures += _write(found, causes, plot=plot, html=html)
    finally:
        error = {"error": error_document(failures[0])} if failures else {}
        console.json_document({**document(found, causes), **error})
    return failures


def _write(
    found: Scaling, causes: Causes, *, plot: Path | None, html: Path | None
) -> list[UserError]:
    """Write each file that can be written; return why others cannot."""
    from clusterkit.observe.bench.scaling.page import draw, page

    refused = []
    for path in filter(None, (plot if found.base is not None else None, html)):
        try:
            if path == plot:
                draw(path, found)
            else:
                files.write_text(path, page(found, causes), mode=files.output())
        except UserError as error:
            refused.append(error)
        else:
            console.note(f"wrote {path}")
    return refused


def _exit_code(found: Scaling, causes: Causes) -> int:
    if found.base is None:
        return EXIT_FINDINGS if any(row.failed for row in found.rows) else EXIT_COULD_NOT
    troubled = any(row.problem for row in found.rows)
    return EXIT_FINDINGS if troubled or any(causes.values()) else 0
