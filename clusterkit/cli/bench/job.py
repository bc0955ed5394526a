"""The job that `clusterkit bench allreduce` measures with: what it is asked, and how it ended."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clusterkit.cli.bench.report import allreduce_lines
from clusterkit.cli.diagnose.report import why_failed
from clusterkit.cli.frame import console
from clusterkit.cli.frame.job_args import exit_code_of, state_text
from clusterkit.cli.frame.main import (
    EXIT_COULD_NOT,
    EXIT_FINDINGS,
    error_document,
)
from clusterkit.core import files
from clusterkit.core.data import data_dir
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.model import JobState, LaunchPlan
from clusterkit.estimate.factors import calibration_file, load_calibration, save_calibration
from clusterkit.estimate.query.answer import LOCAL
from clusterkit.executors.run.runfolder import RunFolder, listed
from clusterkit.executors.submission import fetch
from clusterkit.jobs.document import full_document_of, name_of
from clusterkit.jobs.state.load import Job
from clusterkit.jobs.watch import wait as wait_for
from clusterkit.observe.bench.allreduce.answer import Answer, document, empty_document, learned
from clusterkit.observe.bench.allreduce.document import FILE, read_document, read_result
from clusterkit.observe.bench.allreduce.result import (
    Result,
    parse_operations,
    parse_sizes,
)
from clusterkit.transport.probe import Unparsed

if TYPE_CHECKING:
    from clusterkit.jobs.submit.submit import ProgramRequest

_FOLDER = data_dir("templates/programs/collectives")
_SCRIPT = "clusterkit_collectives.py"
_PROGRAM = (_SCRIPT, "clusterkit_collective.py")
_BACKENDS = ("auto", "nccl", "gloo")
_BY = ("auto", "torch", "nccl-tests")
_USUAL_SIZES = {"gloo": "1M:64M", "nccl": "1M:1G"}
_AROUND_S = 600
"""For importing torch and meeting, before and after the measurement."""
_LATE_S = 30.0
"""How long the result of a job that succeeded may take to be seen here."""


def arguments_of(
    *, ops: str, sizes: str | None, iterations: int, seconds: int, backend: str, by: str
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
    }


def tell(job: Job) -> None:
    """Say how a job ended, and why where it failed."""
    console.note(f"{name_of(job)} {state_text(job)}")
    console.note(*why_failed(job))


def run_job(
    options: Mapping[str, Any], arguments: Mapping[str, Any], *, dry_run: bool, as_json: bool
) -> tuple[Job, Result]:
    """Submit the job, wait for its end, and return what it measured, perhaps only a part of it.

    Raises:
        UserError, RemoteError: it cannot be submitted.
        KeyboardInterrupt: the user has interrupted it; the job has been cancelled.
        typer.Exit: it was only to be shown, preflight refused it, or it has measured nothing.
    """
    from clusterkit.cli.jobs.submit_output import listening, show_plan, showing_refusal
    from clusterkit.jobs.submit.submit import in_foreground, prepare
    from clusterkit.launch.render import summary

    prepared = prepare(_request(options, arguments))
    _check_slots(prepared.plan)
    if dry_run:
        show_plan(prepared.plan, as_json=as_json)
        raise typer.Exit
    with ExitStack() as held:
        with showing_refusal(as_json=as_json), listening() as callbacks:
            plan, run, submission = held.enter_context(
                in_foreground(prepared, callbacks=callbacks, command_line=sys.argv)
            )
        name = submission.job_id or run.key
        console.note(f"{console.bold(name)}  {summary(plan)}, cluster {plan.cluster.name}")
        console.note(f"  run folder  {run.path}")
        job = _wait(run, name)
    result = _result(job)
    if result is None:
        raise typer.Exit(_show_failure(job, as_json=as_json))
    return job, result


def _wait(run: RunFolder, name: str) -> Job:
    try:
        return wait_for(run, on_problem=console.warn)
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be what has gone
            console.note(f"\n{name} is being cancelled")
        raise


def _result(job: Job) -> Result | None:
    written = _kept(job)
    if written is None:
        return None
    try:
        result = read_document(written)
    except Unparsed as error:
        console.warn(f"{job.run.results / FILE}: {error}")
        return None
    return result if result.measured or result.wrong or result.left_out else None


def _kept(job: Job) -> dict[str, Any] | None:
    """Return what the program has written down.

    Of a job that succeeded, that is waited for: what nodes keep comes back after they have told how
    they ended, and a file server may show it late.
    """
    run, deadline = job.run, time.monotonic() + _LATE_S
    while True:
        written = files.read_json(run.results / FILE) if FILE in listed(run.results) else None
        whole = written is not None and written.get("complete") is True
        if whole or job.status.state is not JobState.SUCCEEDED or time.monotonic() > deadline:
            return written
        fetch(run, job.submission)
        time.sleep(0.5)


def _request(options: Mapping[str, Any], arguments: Mapping[str, Any]) -> ProgramRequest:
    from clusterkit.jobs.submit.submit import ProgramRequest

    seconds = arguments["seconds"] * len(arguments["ops"]) + _AROUND_S
    flags = {
        "name": "bench-allreduce",
        "time": str(math.ceil(seconds / 60)),
        **options,
        "framework": "torchrun",
        "script": str(_FOLDER / _SCRIPT),
        "args": [json.dumps(arguments)],
    }
    program = {name: (_FOLDER / name).read_text(encoding="utf-8") for name in _PROGRAM}
    return ProgramRequest(
        verb="bench allreduce", flags=flags, file=None, warn=console.warn, program=program
    )


def _check_slots(plan: LaunchPlan) -> None:
    """Refuse a job with nothing to measure.

    Raises:
        UserError: that is so.
    """
    if plan.max_nodes is not None:
        raise UserError(
            f"--nodes {plan.nodes}:{plan.max_nodes}: what is measured has a fixed size",
            hint=f"--nodes {plan.max_nodes}",
        )
    if plan.processes < 2:
        raise UserError(
            "one slot has nobody to exchange anything with",
            hint="--nodes 2, or --gpus-per-node 2 to measure within a node",
        )


def read(source: str, options: Mapping[str, Any]) -> Result:
    """Return the result in a file, a run folder or, with `-`, on stdin."""
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
            tell(job)
    if refused is not None:
        console.error(str(refused))
    wrong = EXIT_FINDINGS if result.correct is False or result.error is not None else 0
    code = exit_code_of(job) if job is not None else 0
    return code or wrong or (EXIT_COULD_NOT if refused is not None else 0)


def _show_failure(job: Job, *, as_json: bool) -> int:
    """Tell why a job has measured nothing, and return the exit code."""
    if as_json:
        about = {"job": full_document_of(job), "calibration": None}
        console.json_document({**empty_document(), **about})
    tell(job)
    if job.status.state is JobState.SUCCEEDED:
        console.error(
            f"the job succeeded and left no result\nhint: clusterkit logs {name_of(job)} shows why"
        )
    return exit_code_of(job) or EXIT_COULD_NOT
