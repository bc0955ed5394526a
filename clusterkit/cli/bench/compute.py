"""`clusterkit bench compute`: how fast each GPU multiplies, and whether its products are right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterkit.cli.bench.allreduce import JOB
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.job_options import DryRunFlag, takes_job_options


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
    from clusterkit.observe.bench import compute as multiplied

    bench = jobs.Bench(
        verb="bench compute",
        program=("compute/clusterkit_compute.py", "compute/clusterkit_meeting.py"),
        more=_more,
        file=multiplied.FILE,
        read=multiplied.read_document,
        empty=lambda: multiplied.document(multiplied.Result()),
    )
    asked = {"seconds": seconds}
    job, result = jobs.measured(
        *(bench, options, asked), source=from_, seconds=seconds, dry_run=dry_run, as_json=json
    )
    found, lines = multiplied.document(result), compute_lines(result)
    jobs.finish(job, found, lines, is_bad=bool(multiplied.findings(result)), as_json=json)


def _more() -> dict[str, str]:
    from clusterkit.preflight.probes.gpu.vitals import NVIDIA
    from clusterkit.transport.probe import PreflightJob

    return {"clusterkit_vitals.sh": NVIDIA.snippet(PreflightJob(hosts=())) or ""}
