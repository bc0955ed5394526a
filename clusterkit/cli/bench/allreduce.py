"""`clusterkit bench allreduce`: how fast all-reduces are, and whether their results are right."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.job_args import exit_code_of
from clusterkit.cli.frame.job_options import DryRunFlag, takes_job_options
from clusterkit.cli.frame.main import EXIT_COULD_NOT, EXIT_FINDINGS, error_document
from clusterkit.core.errors import UserError

if TYPE_CHECKING:
    from clusterkit.jobs.state.load import Job
    from clusterkit.observe.bench.allreduce.answer import Answer
    from clusterkit.observe.bench.allreduce.result import Result

_JOB = (
    *("cluster", "nodes", "gpus_per_node", "time", "name", "env", "secret", "exclude", "set"),
    *("image", "container", "mount", "preflight", "exclude_unfit", "force"),
)


@takes_job_options(*_JOB)
@explained
def allreduce(
    options: Mapping[str, Any],
    ops: str = "all-reduce",
    sizes: str | None = None,
    iterations: int = 20,
    seconds: int = 60,
    backend: str = "auto",
    by: str = "auto",
    from_: str | None = None,
    interconnect: str | None = None,
    gpu: str | None = None,
    save: bool = False,
    dry_run: DryRunFlag = False,
    json: JsonFlag = False,
) -> None:
    """Measure collectives between the ranks of a job, and check their results.

    Bandwidths are those of nccl-tests. The largest message is compared with what
    `estimate` assumes, the best with what is published for such GPUs.

    Exit code 1 if a result was wrong or the job failed.
    """
    from clusterkit.cli.bench.job import arguments_of, run_job
    from clusterkit.estimate.machines.gpus import gpu_named
    from clusterkit.estimate.machines.interconnects import interconnect_named
    from clusterkit.observe.bench.allreduce.answer import answer

    arguments = arguments_of(
        ops=ops, sizes=sizes, iterations=iterations, seconds=seconds, backend=backend, by=by
    )
    if interconnect is not None:
        interconnect_named(interconnect)
    if gpu is not None:
        gpu_named(gpu)
    if save and backend == "gloo":
        raise UserError("--save: estimates are of GPUs and nccl", hint="leave out one of the two")
    cluster = options.get("cluster")
    if save and cluster is not None:
        from clusterkit.config.load import load_settings

        load_settings().cluster(cluster)  # a wrong name is to be told before hours of waiting
    job: Job | None = None
    if from_ is not None:
        result = _read(from_, options)
    else:
        job, measured = run_job(options, arguments, dry_run=dry_run, as_json=json)
        if measured is None:
            raise typer.Exit(_show_failure(job, as_json=json))
        result = measured
    found = answer(result, interconnect=interconnect, gpu=gpu)
    cluster = cluster if job is None else job.submission.cluster
    kept, refused = _keep(found, cluster) if save else (None, None)
    _show(found, job, kept, refused, as_json=json)
    if refused is not None:
        console.error(str(refused))
    wrong = EXIT_FINDINGS if result.correct is False or result.error is not None else 0
    code = exit_code_of(job) if job is not None else 0
    raise typer.Exit(code or wrong or (EXIT_COULD_NOT if refused is not None else 0))


def _read(source: str, options: Mapping[str, Any]) -> Result:
    from clusterkit.core import files
    from clusterkit.executors.run.runfolder import RunFolder
    from clusterkit.observe.bench.allreduce.document import FILE, read_result

    nodes, slots = (_number(flag, options.get(flag)) for flag in ("nodes", "gpus_per_node"))
    if source == "-":
        result = read_result(sys.stdin.buffer, source="standard input")
    else:
        path = Path(source)
        if (kept := RunFolder(path).results / FILE).is_file():
            path = kept
        with files.explained(path, "read"), path.open("rb") as stream:
            result = read_result(stream, source=source)
    ranks = nodes * slots if nodes and slots else None
    return result.on(ranks=ranks, node_count=nodes)


def _number(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not int(text):
        name = flag.replace("_", "-")
        raise UserError(f"--{name} {text}: with --from, one number", hint=f"--{name} 8")
    return int(text)


def _keep(found: Answer, cluster: str | None) -> tuple[Path | None, UserError | None]:
    """Write down what the result says of the links of a cluster; return where, or why not."""
    from clusterkit.estimate.factors import calibration_file, load_calibration, save_calibration
    from clusterkit.estimate.query.answer import LOCAL
    from clusterkit.observe.bench.allreduce.answer import learned

    try:
        place = calibration_file(cluster or LOCAL, os.environ)
        save_calibration(place, learned(found.result, found.fabric, before=load_calibration(place)))
    except UserError as error:
        return None, error  # what was measured is to be shown all the same
    return place, None


def _show(
    found: Answer,
    job: Job | None,
    kept: Path | None,
    refused: UserError | None,
    *,
    as_json: bool,
) -> None:
    from clusterkit.cli.bench.job import tell
    from clusterkit.cli.bench.report import allreduce_lines
    from clusterkit.core.model import JobState
    from clusterkit.jobs.document import full_document_of
    from clusterkit.observe.bench.allreduce.answer import document

    if as_json:
        of_job = {
            "job": full_document_of(job) if job is not None else None,
            "calibration": kept,
        }
        error = {} if refused is None else {"error": error_document(refused)}
        console.json_document({**document(found), **of_job, **error})
        return
    console.say(*allreduce_lines(found))
    if kept is not None:
        console.say(f"kept for estimates: {kept}")
    if job is not None and job.status.state is not JobState.SUCCEEDED:
        tell(job)


def _show_failure(job: Job, *, as_json: bool) -> int:
    """Tell why a job has measured nothing, and return the exit code."""
    from clusterkit.cli.bench.job import tell
    from clusterkit.core.model import JobState
    from clusterkit.jobs.document import full_document_of, name_of
    from clusterkit.observe.bench.allreduce.answer import empty_document

    if as_json:
        of_job = {"job": full_document_of(job), "calibration": None}
        console.json_document({**empty_document(), **of_job})
    tell(job)
    if job.status.state is JobState.SUCCEEDED:
        console.error(
            f"the job succeeded and left no result\nhint: clusterkit logs {name_of(job)} shows why"
        )
    return exit_code_of(job) or EXIT_COULD_NOT
