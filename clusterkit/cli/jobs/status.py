"""`clusterkit status`: what became of the jobs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from clusterkit.cli.diagnose.report import last_words
from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.job_args import (
    JobOrNone,
    all_runs,
    colour_of,
    exit_code_of,
    is_array,
    note_others,
    note_owner,
    run_named,
    state_text,
)
from clusterkit.cli.jobs.wait import UNDER_WAY, show_array
from clusterkit.config.load import load_settings
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import JobState, NodeResult
from clusterkit.core.text import cut, some_of, table
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.document import document_of, full_document_of, name_of, notified
from clusterkit.jobs.nccl_network import network_of
from clusterkit.jobs.state.load import Job, load_job, load_jobs
from clusterkit.observe import prometheus as metrics


@explained
def status(
    job: JobOrNone = None,
    state: str | None = None,
    cluster: str | None = None,
    limit: int = 20,
    prometheus: Path | None = None,
    usage: bool = False,
    json: JsonFlag = False,
) -> None:
    """Tell the state of a job, or list the recent ones, newest last."""
    selected = _states(state)
    if usage and (job is None or is_array(job)):
        raise UserError("--usage is of one JOB", hint="of many: clusterkit report")
    if job is None:
        _list(limit, selected, cluster, as_json=json, prometheus=prometheus)
        return
    if prometheus is not None:
        raise UserError(
            "--prometheus tells of all jobs, and JOB is one",
            hint=f"clusterkit status --limit 0 --prometheus {prometheus}",
        )
    if selected or cluster:
        raise UserError(
            "--state and --cluster choose from the list of jobs, and JOB is one",
            hint=f"clusterkit status {job}",
        )
    if is_array(job):
        raise typer.Exit(show_array(job, as_json=json))
    found = load_job(run_named(job))
    note_owner(found.run)
    if json:
        console.json_document({**full_document_of(found), **(_usage(found) if usage else {})})
    else:
        _describe(found)
        if usage:
            from clusterkit.cli.jobs.report import usage_here, usage_lines

            console.say(*usage_lines(usage_here(found)))
    if found.status.state not in UNDER_WAY:
        raise typer.Exit(exit_code_of(found))


def _usage(job: Job) -> dict[str, Any]:
    from clusterkit.cli.jobs.report import usage_here
    from clusterkit.observe.account import document_of as document_of_usage

    return {"usage": document_of_usage(usage_here(job))}


def _states(text: str | None) -> frozenset[JobState]:
    names_given = [word.strip().lower() for word in (text or "").split(",")]
    names = [word for word in names_given if word]
    for name in names:
        if name not in set(JobState):
            raise UserError(
                f"--state {name}: there is no such state",
                hint=choices_hint(name, [state.value for state in JobState]),
            )
    return frozenset(JobState(name) for name in names)


def _list(
    limit: int,
    states: frozenset[JobState],
    cluster: str | None,
    *,
    as_json: bool,
    prometheus: Path | None = None,
) -> None:
    if prometheus is not None:
        metrics.require_metrics(prometheus)
    runs = all_runs()
    note_others()
    total = len(runs)
    if states or cluster:  # known of a job once it has been looked at, so all of them are
        jobs = load_jobs(runs)
        if cluster is not None:
            _check_cluster(cluster, jobs)
            jobs = [job for job in jobs if job.submission.cluster == cluster]
        jobs = [job for job in jobs if not states or job.status.state in states]
        total = len(jobs)
        jobs = jobs[-limit:] if limit else jobs
    else:
        jobs = load_jobs(runs[-limit:] if limit else runs)
    _warn_of_damage(runs if states or cluster or not limit else runs[-limit:], jobs)
    if prometheus is not None:
        metrics.write_jobs(prometheus, jobs, now=time.time())
    if as_json:
        console.json_document({"jobs": [document_of(job) for job in jobs], "total": total})
        return
    if not jobs and runs:
        console.note("no such jobs; clusterkit status lists them all")
        return
    if not jobs:
        console.note("no jobs yet; start one: clusterkit submit --framework torchrun train.py")
        return
    if limit and total > limit:
        console.note(f"{total - limit} older jobs not shown (--limit 0 lists all)")
    _table(jobs)
    unknown = [name_of(job) for job in jobs if job.status.state is JobState.UNKNOWN]
    if unknown:
        console.note(f"of {some_of(unknown, 3)} nobody can tell: clusterkit status JOB says why")


def _warn_of_damage(runs: Iterable[RunFolder], jobs: Iterable[Job]) -> None:
    """Name the runs of which nothing can be told; one without the file is just being made."""
    shown = {job.run for job in jobs}
    for run in (run for run in runs if run not in shown):
        is_known = run.state.exists() or not run.submission.exists()
        if not is_known and runfolder.read_submission(run) is None:
            console.warn(f"{run.submission} is damaged: its job is not listed")


def _check_cluster(name: str, jobs: Iterable[Job]) -> None:
    """Refuse a cluster that neither the configuration nor any job knows.

    Raises:
        UserError: with the name that was meant.
    """
    known = {*load_settings().clusters, *(job.submission.cluster for job in jobs)}
    if name not in known:
        raise UserError(f"unknown cluster {name!r}", hint=choices_hint(name, known))


def _table(jobs: list[Job]) -> None:
    rows = [
        (
            name_of(job),
            console.coloured(job.status.state.value, colour_of(job)),
            job.status.exit_code,
            job.submission.nodes,
            cut(job.submission.cluster, 12),
            f"{_when(job):%m-%d %H:%M}",
        )
        for job in jobs
    ]
    head = ("JOB", "STATE", "EXIT", "NODES", "CLUSTER", "SUBMITTED")
    first, *lines = table([head, *rows], "<<>>", widths=(0, 9, 4, 5))
    room = max(8, shutil.get_terminal_size().columns - len(first) - 4)
    console.say(console.bold(f"{first}    NAME"))
    for line, job in zip(lines, jobs, strict=True):
        array = f" ({job.submission.array})" if job.submission.array else ""
        console.say(f"{line}  {cut(f'{job.submission.name}{array}', room)}")


def _when(job: Job) -> datetime:
    return datetime.fromtimestamp(job.submission.submitted_at, tz=UTC).astimezone()


def _describe(job: Job) -> None:
    submission = job.submission
    nodes = f"{submission.nodes} node{'s' if submission.nodes != 1 else ''}"
    console.say(f"{console.bold(name_of(job))}  {state_text(job)}")
    from clusterkit.cli.jobs.trained_alone import trained_alone

    network = network_of(job.run)
    console.say(*last_words(job), *trained_alone(job))
    if network is not None and network.warning:
        console.say(f"warning: {network.warning}")
    console.say(f"  name       {submission.name} ({submission.framework}, {nodes})")
    if submission.array is not None:
        console.say(f"  array      {submission.array}/{submission.index}")
    console.say(f"  cluster    {submission.cluster}")
    if network is not None:
        console.say(f"  network    {network}")
    console.say(f"  submitted  {_when(job):%Y-%m-%d %H:%M:%S}")
    console.say(f"  folder     {job.run.path}")
    attempts = node_results.read_attempts(job.run)
    for attempt in attempts:
        if len(attempts) > 1:
            console.say(f"  attempt {attempt.attempt + 1} of at most {submission.most_attempts}")
        for line in endings(attempt.nodes):
            console.say(f"  {'  ' * (len(attempts) > 1)}{line}")
    for line in notified(job.run) or ():
        console.say(f"  told       {line}")
    if job.status.state is JobState.UNKNOWN:
        again = "looks again until it is known" + (
            "; do not submit it again" * (not submission.job_id)
        )
        console.say(f"  next       clusterkit wait {name_of(job)} {again}")
    follow = "" if job.status.state.final else "-f "
    console.say(f"  output     clusterkit logs {follow}{name_of(job)}")


def endings(results: Iterable[NodeResult]) -> list[str]:
    """Return a line for each way in which nodes have ended, the worst last."""
    alike: dict[tuple[int, str | None], list[NodeResult]] = {}
    for result in results:
        found = "; ".join(filter(None, (result.found, result.drained)))
        how = node_results.in_a_line(found) if found else result.reason
        alike.setdefault((result.exit_code, how), []).append(result)
    rows = []
    # Success first, then those that others brought down, then those that failed alone.
    for code, reason in sorted(alike, key=lambda how: (how[0] != 0, how[1] is None, how[0])):
        nodes = alike[code, reason]
        names = hostlist.fold_set(node.node for node in nodes)
        why = f" ({reason})" if reason else ""
        seconds = max(node.ended_at - node.started_at for node in nodes)
        rows.append((names, f"exit {code}{why} after {seconds:.0f} s"))
    width = min(40, max((len(names) for names, _ in rows), default=0))
    return [f"{names:<{width}}  {how}" for names, how in rows]
