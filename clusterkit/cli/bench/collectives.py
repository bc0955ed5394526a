"""`clusterkit bench collectives`: what its program is asked, and what is done with its result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterkit.cli.bench import job as jobs
from clusterkit.cli.bench.report import allreduce_lines
from clusterkit.cli.frame import console
from clusterkit.cli.frame.job_args import exit_code_of
from clusterkit.cli.frame.main import EXIT_COULD_NOT, EXIT_FINDINGS, error_document
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.model import JobState
from clusterkit.estimate.factors import calibration_file, load_calibration, save_calibration
from clusterkit.estimate.query.answer import LOCAL
from clusterkit.jobs.document import full_document_of
from clusterkit.jobs.state.load import Job
from clusterkit.jobs.submit.rank_layout import SIZES
from clusterkit.observe.bench.allreduce.answer import Answer, document, empty_document, learned
from clusterkit.observe.bench.allreduce.document import FILE, read_document, read_result
from clusterkit.observe.bench.allreduce.result import (
    OVER,
    Result,
    parse_operations,
    parse_sizes,
)

_BACKENDS = ("auto", "nccl", "gloo")
_BY = ("auto", "torch", "nccl-tests")
_USUAL_SIZES = {"gloo": "1M:64M", "nccl": "1M:1G"}


BENCH = jobs.Bench(
    verb="bench collectives",
    program=("collectives/clusterkit_collectives.py", "collectives/clusterkit_collective.py"),
    file=FILE,
    read=lambda written, _: read_document(written),
    says=lambda result: result.measured or result.wrong or result.left_out,
    empty=lambda: {**empty_document(), "calibration": None},
    alone="one slot has nobody to exchange anything with",
)


def arguments_of(
    options: Mapping[str, Any],
    *,
    over: str | None,
    ops: str,
    sizes: str | None,
    iterations: int,
    seconds: int,
    backend: str,
    by: str,
) -> dict[str, Any]:
    """Return what the program is asked to measure, and for how long; sizes in bytes per backend.

    Raises:
        UserError: one of the flags makes no sense.
    """
    for flag, value, known in (("backend", backend, _BACKENDS), ("by", by, _BY)):
        if value not in known:
            raise UserError(f"--{flag} {value}: unknown", hint=choices_hint(value, known))
    for flag, number, minimum, maximum in (
        ("iters", iterations, 2, 100_000),
        ("seconds", seconds, 1, 86_400),
    ):
        if not minimum <= number <= maximum:
            nearest = minimum if number < minimum else maximum
            raise UserError(
                f"--{flag} {number}: from {minimum} to {maximum:,}", hint=f"--{flag} {nearest}"
            )
    if by == "nccl-tests" and backend == "gloo":
        raise UserError("--by nccl-tests measures nccl, and not gloo", hint="leave one out")
    if over is not None:
        _check_over(over, options, by)
    return {
        "ops": [op.value for op in parse_operations(ops)],
        "sizes": {
            name: parse_sizes(usual if sizes is None else sizes)
            for name, usual in _USUAL_SIZES.items()
        },
        "iterations": iterations,
        "seconds": seconds,
        "backend": backend,
        "by": by,
        **({} if over is None else {"over": over}),
    }


def _check_over(over: str, options: Mapping[str, Any], by: str) -> None:
    """Refuse groups that this layout does not have."""
    if over not in OVER:
        raise UserError(f"--over {over}: unknown", hint=choices_hint(over, OVER))
    sizes = {name: options.get(name) for name in SIZES}
    if over == "dp" and not any(size for name, size in sizes.items() if name != "ep"):
        raise UserError("--over dp: without --tp or --pp, these are all ranks", hint="leave it out")
    if over != "dp" and str(sizes[over] or 1) == "1":
        hint = f"--{over} 2 --over {over}"
        raise UserError(f"--over {over}: the layout has no {over} groups", hint=hint)
    if by == "nccl-tests":
        raise UserError("--by nccl-tests measures all ranks of a node", hint="leave --over out")


def read(source: str, options: Mapping[str, Any]) -> Result:
    """Return the result in a file, a run folder or, with `-`, on stdin."""
    nodes, slots = (_number(flag, options.get(flag)) for flag in ("nodes", "gpus_per_node"))
    with jobs.opened(source, FILE) as (stream, name):
        result = read_result(stream, source=name)
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
    try:
        place = calibration_file(cluster or LOCAL, os.environ)
        save_calibration(place, learned(found.result, found.fabric, before=load_calibration(place)))
    except UserError as error:
        return None, error  # what was measured is to be shown all the same
    return place, None


def show(found: Answer, job: Job | None, cluster: str | None, *, save: bool, as_json: bool) -> int:
    """Print an answer, kept for estimates where that is asked for; return the exit code."""
    result = found.result
    kept, refused = _keep(found, cluster) if save else (None, None)
    if as_json:
        of_job = {"job": job and full_document_of(job), "calibration": kept}
        error = {} if refused is None else {"error": error_document(refused)}
        console.json_document({**document(found), **of_job, **error})
    else:
        console.say(*allreduce_lines(found))
        if kept is not None:
            console.say(f"kept for estimates: {kept}")
        if job is not None and job.status.state is not JobState.SUCCEEDED:
            jobs.tell(job)
    if refused is not None:
        console.error(str(refused))
    wrong = EXIT_FINDINGS if result.correct is False or result.error is not None else 0
    code = exit_code_of(job) if job is not None else 0
    return code or wrong or (EXIT_COULD_NOT if refused is not None else 0)
