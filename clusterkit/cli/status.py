"""`clusterkit status`: what became of the jobs."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

import typer

from clusterkit import hostlist
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
from clusterkit.model import JobState, JobStatus, NodeResult

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
    word = dataclasses.replace(job, status=JobStatus(state=job.status.state))
    return said(word) + " " * (width - len(job.status.state.value))


def _describe(job: Job) -> None:
    submission = job.submission
    when = datetime.fromtimestamp(submission.submitted_at, tz=UTC).astimezone()
    nodes = f"{submission.nodes} node{'s' if submission.nodes != 1 else ''}"
    console.say(f"{console.bold(name_of(job))}  {said(job)}")
    console.say(f"  name       {submission.name} ({submission.framework}, {nodes})")
    console.say(f"  cluster    {submission.cluster}")
    console.say(f"  submitted  {when:%Y-%m-%d %H:%M:%S}")
    console.say(f"  folder     {job.run.path}")
    for line in endings(job.results):
        console.say(f"  {line}")
    follow = "" if job.status.state.final else "-f "
    console.say(f"  output     clusterkit logs {follow}{name_of(job)}")


def endings(results: Iterable[NodeResult]) -> list[str]:
    """Return a line for each way in which nodes have ended, the worst last."""
    alike: dict[tuple[int, str | None], list[NodeResult]] = {}
    for result in results:
        alike.setdefault((result.exit_code, result.reason), []).append(result)
    rows = []
    for (code, reason), nodes in sorted(alike.items(), key=lambda item: _badness(*item[0])):
        names = hostlist.fold_set(node.node for node in nodes)
        why = f" ({reason})" if reason else ""
        seconds = max(node.ended_at - node.started_at for node in nodes)
        rows.append((names, f"exit {code}{why} after {seconds:.0f} s"))
    width = min(40, max((len(names) for names, _ in rows), default=0))
    return [f"{names:<{width}}  {how}" for names, how in rows]


def _badness(code: int, reason: str | None) -> tuple[bool, bool, int]:
    """Sort success first, then those that others brought down, then those that failed alone."""
    return code != 0, reason is None, code


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
