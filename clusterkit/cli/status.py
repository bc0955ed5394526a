"""`clusterkit status`: what became of the jobs."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import Annotated

import typer

from clusterkit.cli import console
from clusterkit.cli.job_args import (
    JOB_HELP,
    all_runs,
    document_of,
    exit_code_of,
    name_of,
    run_named,
    said,
)
from clusterkit.jobs import Job, load_jobs
from clusterkit.jobs.state import load_job
from clusterkit.model import JobState

_UNDER_WAY = {JobState.PENDING, JobState.RUNNING, JobState.REQUEUED}


def status(
    job: Annotated[str | None, typer.Argument(help=JOB_HELP, show_default=False)] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="List so many jobs; 0 for all.")
    ] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Tell the state of a job, or list the recent ones, newest last."""
    if job is None:
        _list(limit, as_json=json)
        return
    found = load_job(run_named(job))
    if json:
        console.json_document(document_of(found))
    else:
        _describe(found)
    if found.status.state not in _UNDER_WAY:
        raise typer.Exit(exit_code_of(found))


def _list(limit: int, *, as_json: bool) -> None:
    runs = all_runs()
    shown = runs[-limit:] if limit else runs
    jobs = load_jobs(shown)
    if as_json:
        console.json_document({"jobs": [document_of(job) for job in jobs], "total": len(runs)})
        return
    if not jobs:
        console.note("no jobs yet; start one: clusterkit submit --framework torchrun train.py")
        return
    if len(runs) > len(shown):
        console.note(f"{len(runs) - len(shown)} older jobs not shown (--limit 0 lists all)")
    _table(jobs)


def _table(jobs: list[Job]) -> None:
    width = shutil.get_terminal_size().columns
    ids = max(len("JOB"), *(len(name_of(job)) for job in jobs))
    clusters = max(len("CLUSTER"), *(len(job.submission.cluster) for job in jobs))
    clusters = min(clusters, 12)
    room = max(8, width - (ids + clusters + 36))
    head = f"{'JOB':<{ids}}  {'STATE':<9}  {'EXIT':>4}  {'NODES':>5}  {'CLUSTER':<{clusters}}"
    console.say(console.bold(f"{head}  {'SUBMITTED':<11}  NAME"))
    for job in jobs:
        code = job.status.exit_code
        when = datetime.fromtimestamp(job.submission.submitted_at, tz=UTC).astimezone()
        state = said_in(job, 9)
        console.say(
            f"{name_of(job):<{ids}}  {state}  {'' if code is None else code:>4}  "
            f"{job.submission.nodes:>5}  {_cut(job.submission.cluster, clusters):<{clusters}}  "
            f"{when:%m-%d %H:%M}  {_cut(job.submission.name, room)}"
        )


def said_in(job: Job, width: int) -> str:
    """Return the state, coloured and padded to `width`."""
    word = job.status.state.value
    return said(job).partition(":")[0].partition(" ")[0] + " " * (width - len(word))


def _describe(job: Job) -> None:
    submission = job.submission
    when = datetime.fromtimestamp(submission.submitted_at, tz=UTC).astimezone()
    nodes = f"{submission.nodes} node{'s' if submission.nodes != 1 else ''}"
    console.say(f"{console.bold(name_of(job))}  {said(job)}")
    console.say(f"  name       {submission.name} ({submission.framework}, {nodes})")
    console.say(f"  cluster    {submission.cluster}")
    console.say(f"  submitted  {when:%Y-%m-%d %H:%M:%S}")
    console.say(f"  folder     {job.run.path}")
    for result in job.results:
        why = f" ({result.reason})" if result.reason else ""
        seconds = result.ended_at - result.started_at
        console.say(
            f"  node {result.node_rank:<5} {result.node} exit {result.exit_code}{why} "
            f"after {seconds:.0f} s"
        )
    follow = "" if job.status.state.final else "-f "
    console.say(f"  output     clusterkit logs {follow}{name_of(job)}")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
