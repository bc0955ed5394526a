"""The job that a verb of `clusterkit bench` measures with, by a program of ours, and its end."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, NoReturn, TypeVar

import typer

from clusterkit.cli.diagnose.report import why_failed
from clusterkit.cli.frame import console
from clusterkit.cli.frame.job_args import exit_code_of, plain_state, state_text
from clusterkit.cli.frame.main import EXIT_COULD_NOT, EXIT_FINDINGS
from clusterkit.core import files
from clusterkit.core.data import data_dir, read_template
from clusterkit.core.errors import UserError
from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.core.model import JobState, LaunchPlan
from clusterkit.core.text import in_words, wrapped
from clusterkit.executors.run.runfolder import RunFolder, listed
from clusterkit.executors.submission import fetch
from clusterkit.jobs.document import full_document_of, name_of
from clusterkit.jobs.state.load import Job
from clusterkit.jobs.watch import wait as wait_for
from clusterkit.observe.bench.allreduce.document import read_ours
from clusterkit.transport.probe import Unparsed

if TYPE_CHECKING:
    from clusterkit.jobs.submit.submit import ProgramRequest
    from clusterkit.observe.bench.compute import Finding as OfRank
    from clusterkit.observe.bench.storage import Finding as OfNode

_AROUND_S = 600
"""For importing torch and meeting, before and after the measurement."""
_LATE_S = 30.0
"""How long the result of a job that succeeded may take to be seen here."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench(Generic[T]):
    """What is measured by a job."""

    verb: str
    program: tuple[str, ...]
    """Its files in templates/programs/, the script first."""
    more: Callable[[], Mapping[str, str]] = dict
    """Name and text of further files."""
    file: str
    """What the program writes into the folder of results."""
    read: Callable[[Mapping[str, Any], Sequence[str | None] | None], T]
    """Return what that says, also given the node of each rank (None where nobody has told). Raises
    `Unparsed`."""
    says: Callable[[T], object] = attrgetter("measured")
    """Tell whether that is anything."""
    empty: Callable[[], Mapping[str, Any]]
    """What `--json` tells where nothing was measured."""
    alone: str = ""
    """Why one slot is too few, and what to do; empty where it is enough."""


def measured(
    bench: Bench[T],
    options: Mapping[str, Any],
    arguments: Mapping[str, Any],
    *,
    source: str | None,
    seconds: int,
    dry_run: bool,
    as_json: bool,
) -> tuple[Job | None, T]:
    """Return what was measured before, and is read from `source`; else as `run_job`."""
    if source is None:
        return run_job(bench, options, arguments, seconds=seconds, dry_run=dry_run, as_json=as_json)
    with opened(source, bench.file) as (stream, name):
        return None, read_ours(stream, bench.read, source=name, file=bench.file)


def finish(
    job: Job | None,
    document: Mapping[str, Any],
    lines: Iterable[str],
    *,
    is_bad: bool,
    as_json: bool,
) -> NoReturn:
    """Show what was measured, as a document or as lines, and how the job ended; then exit."""
    if as_json:
        console.json_document({**document, "job": job and full_document_of(job)})
    else:
        console.say(*lines)
    if job is not None and job.status.state is not JobState.SUCCEEDED:
        tell(job)
    code = exit_code_of(job) if job is not None else 0
    raise typer.Exit(code or (EXIT_FINDINGS if is_bad else 0))


def finding_lines(
    found: Sequence[OfRank] | Sequence[OfNode], nodes: Collection[str]
) -> Iterator[str]:
    """Yield what is wrong with ranks or some of these nodes, and how to do without them."""
    for one in found:
        head, *more = wrapped(f"{one.kind}: {one.where}: {one.summary}", rest="  ")
        yield console.coloured(one.kind, "red") + head.removeprefix(one.kind)
        yield from more
    bad = {one.node for one in found if one.node}
    if bad and not bad.issuperset(nodes):
        yield f"without them: --exclude {fold_set(bad)}"


def tell(job: Job) -> None:
    """Say how a job ended, and why where it failed."""
    console.note(f"{name_of(job)} {state_text(job)}")
    console.note(*why_failed(job))


def run_job(
    bench: Bench[T],
    options: Mapping[str, Any],
    arguments: Mapping[str, Any],
    *,
    seconds: int,
    dry_run: bool,
    as_json: bool,
) -> tuple[Job, T]:
    """Submit the job, wait for its end, and return it and what it measured in these `seconds`.

    Raises:
        UserError, RemoteError: it cannot be submitted.
        KeyboardInterrupt: the user has interrupted it; the job has been cancelled.
        typer.Exit: it was only to be shown, preflight refused it, or it has measured nothing.
    """
    from clusterkit.cli.jobs.submit_output import headline, listening, show_plan, showing_refusal
    from clusterkit.jobs.submit.submit import in_foreground, prepare

    prepared = prepare(_request(bench, options, arguments, seconds))
    _check_slots(bench, prepared.plan)
    if dry_run:
        show_plan(prepared.plan, as_json=as_json)
        raise typer.Exit
    with ExitStack() as held:
        with showing_refusal(as_json=as_json), listening() as callbacks:
            plan, run, submission = held.enter_context(
                in_foreground(prepared, callbacks=callbacks, command_line=sys.argv)
            )
        name = submission.job_id or run.key
        console.progress_note(
            f"{console.bold(name)}  {headline(plan)}", f"  run folder  {run.path}"
        )
        job = _wait(run, name)
    result = _result(bench, job, plan)
    if result is None:
        raise typer.Exit(_show_failure(bench, job, as_json=as_json))
    return job, result


def _wait(run: RunFolder, name: str) -> Job:
    began = time.monotonic()
    try:
        with console.progress() as show:

            def looked(jobs: Sequence[Job]) -> None:
                show(f"{name}  {plain_state(jobs[0])}, {in_words(time.monotonic() - began)}")

            return wait_for(run, on_problem=console.warn, on_look=looked)
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be what has gone
            console.note(f"\n{name} is being cancelled")
        raise


def _result(bench: Bench[T], job: Job, plan: LaunchPlan) -> T | None:
    written = kept(job, bench.file)
    if written is None:
        return None
    told = {one.node_rank: one.node for one in job.results}
    try:
        found = bench.read(
            written, [told.get(k) for k, n in enumerate(plan.slots) for _ in range(n)]
        )
    except Unparsed as error:
        console.warn(f"{job.run.results / bench.file}: {error}")
        return None
    return found if bench.says(found) else None


def kept(job: Job, file: str) -> dict[str, Any] | None:
    """Return what the program has written down.

    Of a job that succeeded, that is waited for: what nodes keep comes back after they have told how
    they ended, and a file server may show it late.
    """
    run, deadline = job.run, time.monotonic() + _LATE_S
    while True:
        written = files.read_json(run.results / file) if file in listed(run.results) else None
        whole = written is not None and written.get("complete") is True
        if whole or job.status.state is not JobState.SUCCEEDED or time.monotonic() > deadline:
            return written
        fetch(run, job.submission)
        time.sleep(0.5)


def _request(
    bench: Bench[T], options: Mapping[str, Any], arguments: Mapping[str, Any], seconds: int
) -> ProgramRequest:
    from clusterkit.jobs.submit.submit import ProgramRequest

    script = data_dir("templates/programs") / bench.program[0]
    flags = {
        "name": bench.verb.replace(" ", "-"),
        "time": str(math.ceil((seconds + _AROUND_S) / 60)),
        **options,
        "framework": "torchrun",
        "script": str(script),
        "args": [json.dumps(arguments)],
    }
    texts = {Path(name).name: read_template(f"programs/{name}") for name in bench.program}
    program = {**texts, **bench.more()}
    return ProgramRequest(
        verb=bench.verb, flags=flags, file=None, warn=console.warn, program=program
    )


def _check_slots(bench: Bench[T], plan: LaunchPlan) -> None:
    """Refuse a job with nothing to measure.

    Raises:
        UserError: that is so.
    """
    if plan.max_nodes is not None:
        raise UserError(
            f"--nodes {plan.nodes}:{plan.max_nodes}: what is measured has a fixed size",
            hint=f"--nodes {plan.max_nodes}",
        )
    if plan.processes < 2 and bench.alone:
        raise UserError(
            bench.alone, hint="--nodes 2, or --gpus-per-node 2 to measure within a node"
        )


@contextmanager
def opened(source: str, file: str) -> Iterator[tuple[BinaryIO, str]]:
    """Open a file, that of a run folder or, with `-`, stdin; and what to call it in errors."""
    if source == "-":
        yield sys.stdin.buffer, "standard input"
        return
    path = Path(source)
    if (found := RunFolder(path).results / file).is_file():
        path = found
    with files.explained(path, "read"), path.open("rb") as stream:
        yield stream, source


def _show_failure(bench: Bench[T], job: Job, *, as_json: bool) -> int:
    """Tell why a job has measured nothing, and return the exit code."""
    if as_json:
        console.json_document({**bench.empty(), "job": full_document_of(job)})
    tell(job)
    if job.status.state is JobState.SUCCEEDED:
        console.error(
            f"the job succeeded and left no result\nhint: clusterkit logs {name_of(job)} shows why"
        )
    return exit_code_of(job) or EXIT_COULD_NOT
