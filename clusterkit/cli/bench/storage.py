"""`clusterkit bench storage`: how fast nodes write and read, and when to write checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterkit.cli.bench.allreduce import JOB
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.job_options import DryRunFlag, takes_job_options
from clusterkit.core.errors import UserError

_SECONDS = 300
"""What four parts of a minute and the small files take at most; see our program."""
_LEAST, _MOST = 1 << 20, 1 << 44


@takes_job_options(*JOB)
@explained
def storage(
    options: Mapping[str, Any],
    size: str | None = None,
    path: str | None = None,
    mtbf: str | None = None,
    from_: str | None = None,
    dry_run: DryRunFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write checkpoints on each node of a job, read them again, and create small files.

    First one process of each node writes, then all do; nodes are compared with
    each other. From the time of the slowest follows how often to write a
    checkpoint. No file is left behind.

    Exit code 1 if a node is slow, cannot write or does not answer, or the job
    failed.
    """
    from clusterkit.cli.bench import job as jobs
    from clusterkit.cli.bench.storage_report import storage_lines
    from clusterkit.cli.jobs.choose import seconds_of
    from clusterkit.observe.bench import storage as written

    mtbf_s = None if mtbf is None else seconds_of("--mtbf", mtbf)
    asked = {"size": None if size is None else _bytes(size), "path": path}
    bench = jobs.Bench(
        verb="bench storage",
        program=("compute/clusterkit_storage.py", "compute/clusterkit_meeting.py"),
        file=written.FILE,
        read=written.read_document,
        empty=lambda: written.document(written.Result()),
    )
    job, result = jobs.measured(
        *(bench, options, asked), source=from_, seconds=_SECONDS, dry_run=dry_run, as_json=json
    )
    found, lines = written.document(result, mtbf_s), storage_lines(result, mtbf_s)
    jobs.finish(job, found, lines, is_bad=bool(written.findings(result)), as_json=json)


def _bytes(text: str) -> int:
    from clusterkit.config.units import parse_memory

    hint = "--size 512M, 4G or 1T: what a node writes of one checkpoint"
    try:
        size = parse_memory(text, default_unit="")
    except ValueError as error:
        raise UserError(f"--size {text}: {error}", hint=hint) from error
    if not _LEAST <= size <= _MOST:
        raise UserError(f"--size {text}: from 1M to 16T", hint=hint)
    return size
