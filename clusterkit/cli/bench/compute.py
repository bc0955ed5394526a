"""`clusterkit bench compute`: how fast each GPU multiplies, and whether its products are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from clusterkit.cli.bench.allreduce import JOB
from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.job_options import DryRunFlag, takes_job_options
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.core.model import JobState

if TYPE_CHECKING:
    from clusterkit.observe.bench.compute.document import Result


@takes_job_options(*JOB)
@explained
def compute(
    options: Mapping[str, Any],
    seconds: int = 10,
    from_: str | None = None,
    dry_run: DryRunFlag = False,
    json: JsonFlag = False,
) -> None:
    """Multiply the same matrices on each GPU, or CPU, of a job, and check the products.

    Each is compared with the median of its kind, and with the peak of such a GPU;
    nvidia-smi tells clock, power and temperature meanwhile.

    Exit code 1 if a product was wrong, or a GPU is slow, held down or does not
    answer, or the job failed.
    """
    from clusterkit.cli.bench import job as jobs
    from clusterkit.cli.bench.compute_report import compute_lines
    from clusterkit.cli.frame.job_args import exit_code_of
    from clusterkit.jobs.document import full_document_of
    from clusterkit.observe.bench.compute import answer, document

    bench = jobs.Bench(
        verb="bench compute",
        program=("compute/clusterkit_compute.py", "compute/clusterkit_meeting.py"),
        more=_more,
        file=document.FILE,
        read=_measured,
        empty=lambda: answer.document(document.Result()),
    )
    job = None
    if from_ is not None:
        with jobs.opened(from_, document.FILE) as (stream, name):
            result = document.read_result(stream, source=name)
    else:
        asked = {"seconds": seconds}
        job, result = jobs.run_job(
            bench, options, asked, seconds=seconds, dry_run=dry_run, as_json=json
        )
    if json:
        of_job = {"job": job and full_document_of(job)}
        console.json_document({**answer.document(result), **of_job})
    else:
        console.say(*compute_lines(result))
    if job is not None and job.status.state is not JobState.SUCCEEDED:
        jobs.tell(job)
    code = exit_code_of(job) if job is not None else 0
    raise typer.Exit(code or (EXIT_FINDINGS if answer.findings(result) else 0))


def _more() -> dict[str, str]:
    from clusterkit.preflight.probes.gpu.vitals import NVIDIA
    from clusterkit.transport.probe import PreflightJob

    return {"clusterkit_vitals.sh": NVIDIA.snippet(PreflightJob(hosts=())) or ""}


def _measured(written: Mapping[str, Any], nodes: Sequence[str | None]) -> Result | None:
    from clusterkit.observe.bench.compute.document import read_document

    result = read_document(written, names=nodes)
    return result if result.measured else None
