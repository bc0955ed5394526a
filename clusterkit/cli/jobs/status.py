"""`clusterkit status`: what became of the jobs."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from clusterkit.cli.diagnose.report import last_words, not_again
from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.job_args import (
    JobOrNone,
    all_runs,
    colour_of,
    exit_code_of,
    expected_start,
    note_owner,
    reason_of,
    runs_named,
    state_text,
    values_text,
)
from clusterkit.cli.jobs.choose import chosen_runs, states_named
from clusterkit.cli.jobs.wait import UNDER_WAY, show_array, starter_lines
from clusterkit.core import files
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import JobState, NodeResult
from clusterkit.core.records import text_of
from clusterkit.core.text import cut, in_words, limit_in_words, some_of, table
from clusterkit.core.timing import scaled
from clusterkit.executors.run import hangs, node_results, runfolder
from clusterkit.executors.run.node_results import Results
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.jobs.document import document_of, full_document_of, name_of, notified
from clusterkit.jobs.find import Named, SeveralRunsError
from clusterkit.jobs.nccl_network import network_of
from clusterkit.jobs.state.load import Job, load_job, load_jobs
from clusterkit.observe import prometheus as metrics

_WAITING = frozenset({JobState.PENDING, JobState.REQUEUED})
_CLEAR = "\x1b[H\x1b[2J"
_WATCH_EVERY_S = scaled(5.0, 0.5)


@explained
def status(
    job: JobOrNone = None,
    state: str | None = None,
    cluster: str | None = None,
    name: str | None = None,
    since: str | None = None,
    limit: int = 20,
    watch: bool = False,
    prometheus: Path | None = None,
    usage: bool = False,
    json: JsonFlag = False,
) -> None:
    """Tell the state of a job, or list the recent ones, newest last."""
    selected = states_named(state)
    if usage and job is None:
        raise _usage_of_many()
    if watch and json:
        raise UserError(
            "--watch prints again and again, and --json one document",
            hint="clusterkit wait JOB --json prints it once the job is over",
        )
    if job is None:
        for _ in _looks(watch=watch):
            runs = chosen_runs(cluster=cluster, name=name, since=since)
            _list(runs, limit, selected, as_json=json, prometheus=prometheus)
        return
    if prometheus is not None:
        raise UserError(
            "--prometheus tells of all jobs, and JOB is one",
            hint=f"clusterkit status --limit 0 --prometheus {prometheus}",
        )
    if selected or cluster or name or since:
        raise UserError(
            "--state, --cluster, --name and --since choose from the list of jobs, and JOB is one",
            hint=f"clusterkit status {job}",
        )
    try:
        named = runs_named(job)
    except SeveralRunsError as error:
        if usage or json:  # which are of one job
            raise
        for _ in _looks(watch=watch):
            _list([*error.runs], limit, selected, as_json=False)
        return
    raise typer.Exit(_of_job(named, watch=watch, usage=usage, as_json=json))


def _usage_of_many() -> UserError:
    return UserError("--usage is of one JOB", hint="of many: clusterkit report")


def _of_job(named: Named, *, watch: bool, usage: bool, as_json: bool) -> int:
    """Print the state of a job, or of an array, and return the exit code."""
    if usage and named.array:
        raise _usage_of_many()
    note_owner(named.runs[0])
    for _ in _looks(watch=watch):
        if named.array:
            code = show_array(named.array, named.runs, as_json=as_json)
        else:
            found = load_job(named.runs[0])
            _show(found, usage=usage, as_json=as_json)
            code = None if found.status.state in UNDER_WAY else exit_code_of(found)
        if code is not None:
            return code
    return 0


def _show(job: Job, *, usage: bool, as_json: bool) -> None:
    if as_json:
        console.json_document({**full_document_of(job), **(_usage(job) if usage else {})})
        return
    _describe(job)
    if usage:
        from clusterkit.cli.jobs.report import usage_here, usage_lines

        console.say(*usage_lines(usage_here(job)))


def _looks(*, watch: bool) -> Iterator[None]:
    """Yield once, or for ever with a pause: each time on a screen of its own, or after a line."""
    yield
    while watch:
        sys.stdout.flush()
        time.sleep(_WATCH_EVERY_S)
        if sys.stdout.isatty():
            sys.stdout.write(_CLEAR)
        else:
            console.say("")
        yield


def _usage(job: Job) -> dict[str, Any]:
    from clusterkit.cli.jobs.report import usage_here
    from clusterkit.observe.account import document_of as document_of_usage

    return {"usage": document_of_usage(usage_here(job))}


def _list(
    runs: list[RunFolder],
    limit: int,
    states: frozenset[JobState],
    *,
    as_json: bool,
    prometheus: Path | None = None,
) -> None:
    if prometheus is not None:
        metrics.require_metrics(prometheus)
    total = len(runs)
    if states:  # known of a job once it has been looked at, so all of them are
        jobs = [job for job in load_jobs(runs) if job.status.state in states]
        total = len(jobs)
        jobs = jobs[-limit:] if limit else jobs
    else:
        jobs = load_jobs(runs[-limit:] if limit else runs)
    _warn_of_damage(runs if states or not limit else runs[-limit:], jobs)
    if prometheus is not None:
        metrics.write_jobs(prometheus, jobs, now=time.time())
    if as_json:
        console.json_document({"jobs": [document_of(job) for job in jobs], "total": total})
        return
    if not jobs and all_runs():
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


_LEAST_NAME = 16
"""Columns that a name keeps beside a long reason for waiting."""
_LEFT_OUT = ((), (6,), (6, 5), (6, 5, 2))
"""Columns for which a narrow terminal has no room beside whole names: SUBMITTED, CLUSTER, EXIT."""


def _table(jobs: list[Job]) -> None:
    rows: list[tuple[object, ...]] = [
        (
            name_of(job),
            console.coloured(job.status.state.value, colour_of(job)),
            job.status.exit_code,
            _size(job.submission),
            _time(job),
            cut(job.submission.cluster, 10),
            f"{_local(job.submission.submitted_at):%m-%d %H:%M}",
        )
        for job in jobs
    ]
    head = ("JOB", "STATE", "EXIT", "NODES", "TIME", "CLUSTER", "SUBMITTED")
    # Whoever reads it through a pipe searches names, and sees all of them.
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    longest = max(len(job.submission.name) for job in jobs)
    for left_out in _LEFT_OUT:
        shown = [i for i in range(len(head)) if i not in left_out]
        aligned = "".join("<<>>><<"[i] for i in shown)
        widths = [(0, 9, 4, 5, 0, 0, 0)[i] for i in shown]
        cells = [[row[i] for i in shown] for row in (head, *rows)]
        first, *lines = table(cells, aligned, widths=widths)
        room = max(8, columns - len(first) - 4)
        if longest <= room:
            break
    console.say(console.bold(f"{first}    NAME"))
    for line, job in zip(lines, jobs, strict=True):
        array = f" ({job.submission.array})" if job.submission.array else ""
        status = job.status
        waits = f": {reason_of(job)}" if status.state is JobState.PENDING and status.reason else ""
        if (silent_s := _silent_s(job)) is not None:
            waits = f": hangs for {in_words(silent_s)}"
        values = f"  {values_text(job)}" if job.submission.values else ""
        # Why it waits is more than the end of a long name.
        name = job.submission.name
        name = cut(name, max(_LEAST_NAME, room - len(f"{array}{waits}"))) if waits else name
        console.say(f"{line}  {cut(f'{name}{array}{waits}{values}', room)}")


def _size(submission: Submission) -> str:
    """Return `2x8` for two nodes with eight GPUs each, and the nodes alone where those differ.

    `1:2x8` for an elastic job of one or two.
    """
    each, rest = divmod(submission.slots, submission.nodes or 1)
    most = f":{submission.max_nodes}" if submission.max_nodes else ""
    return f"{submission.nodes}{most}" + (f"x{each}" if each and not rest else "")


def _time(job: Job, attempts: Sequence[Results] | None = None) -> str:
    """Return how long the last attempt of a job ran or runs, or the next one waits."""
    status = job.status
    if status.state in _WAITING:
        if attempts is None:
            again = job.submission.most_attempts > 1
            attempts = node_results.read_attempts(job.run) if again else ()
        ends = (node.ended_at for one in attempts for node in one.nodes)
        since = max((job.submission.submitted_at, *ends))  # a node may tell any time
        return in_words(max(0.0, time.time() - since))
    if status.started_at is None or (status.state.final and status.ended_at is None):
        return "-"
    return in_words(max(0.0, (status.ended_at or time.time()) - status.started_at))


def _local(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, tz=UTC).astimezone()


def _moment(moment: float) -> str:
    return f"{_local(moment):%Y-%m-%d %H:%M:%S}"


def _describe(job: Job) -> None:
    submission = job.submission
    most = f" to {submission.max_nodes}" if submission.max_nodes else ""
    nodes = f"{submission.nodes}{most} node{'s' if most or submission.nodes != 1 else ''}"
    if submission.slots:
        nodes += f", {submission.slots} slot{'s' if submission.slots != 1 else ''}"
    console.say(f"{console.bold(name_of(job))}  {state_text(job)}")
    from clusterkit.cli.jobs.trained_alone import trained_alone

    network = network_of(job.run)
    console.say(*last_words(job), *not_again(job), *trained_alone(job))
    if network is not None and network.warning:
        console.say(f"warning: {network.warning}")
    console.say(f"  name       {submission.name} ({submission.framework}, {nodes})")
    if submission.array is not None:
        element = f"{submission.array}/{submission.index}"
        console.say(f"  array      {element}  {values_text(job, whole=True)}".rstrip())
    console.say(f"  cluster    {submission.cluster}", *_on_nodes(job))
    if network is not None:
        console.say(f"  network    {network}")
    attempts = node_results.read_attempts(job.run)
    console.say(f"  submitted  {_moment(submission.submitted_at)}", *_times(job, attempts))
    if limit_s := submission.time_limit_s or job.status.time_limit_s:
        partitions = "" if submission.time_limit_s else ", of the partition"
        console.say(f"  limit      {limit_in_words(limit_s)}{partitions}")
    console.say(*_hangs(job), *starter_lines(job), f"  folder     {job.run.path}")
    console.say(*_attempts(job, attempts))
    for line in notified(job.run) or ():
        console.say(f"  told       {line}")
    if job.status.state is JobState.UNKNOWN:
        again = "looks again until it is known" + (
            "; do not submit it again" * (not submission.job_id)
        )
        console.say(f"  next       clusterkit wait {name_of(job)} {again}")
    follow = "" if job.status.state.final else "-f "
    console.say(f"  output     clusterkit logs {follow}{name_of(job)}")


def _silent_s(job: Job) -> float | None:
    """Return for how many seconds a job that hangs has made no progress by now; None if none.

    Only of a job with a reason is anything read again: that it hangs is one.
    """
    if job.status.state is not JobState.RUNNING or not job.status.reason:
        return None
    hang = hangs.open_hang(job.run, node_results.latest_attempt(job.run))
    return None if hang is None else hang.silent_s + max(0.0, time.time() - hang.at)


def _hangs(job: Job) -> list[str]:
    """Return how long a running job has made no progress by now: its state says how long then."""
    silent_s = _silent_s(job)
    if silent_s is None:
        return []
    silent = in_words(silent_s)
    return [f"  hangs      for {silent} by now; clusterkit diagnose {name_of(job)} says where"]


def _on_nodes(job: Job) -> list[str]:
    """Return where a job runs, as far as that is known; its ends say it later."""
    if job.status.state is not JobState.RUNNING:
        return []
    from clusterkit.jobs.node_names import known_names

    try:
        names = known_names(job)
    except RemoteError:
        return []
    return [f"  nodes      {hostlist.fold_set(names.values())}"] if names else []


def _attempts(job: Job, attempts: Sequence[Results]) -> list[str]:
    """Return how the nodes of each attempt have ended, and whether another one runs since."""
    most = job.submission.most_attempts
    runs = (
        job.status.state is JobState.RUNNING
        and bool(attempts)
        and len(attempts[-1].nodes) >= attempts[-1].of
        and attempts[-1].attempt + 1 < most
    )
    several = len(attempts) + runs > 1
    lines = []
    for attempt in attempts:
        if several:
            lines.append(f"  attempt {attempt.attempt + 1} of at most {most}")
        lines += [f"  {'  ' * several}{line}" for line in endings(attempt.nodes)]
        if why := text_of(files.read_json(job.run.requeued(attempt.attempt)) or {}, "why"):
            lines.append(f"  {'  ' * several}put back: {node_results.in_a_line(why)}")
    if runs:
        lines.append(f"  attempt {attempts[-1].attempt + 2} of at most {most}: running")
    return lines


def _times(job: Job, attempts: Sequence[Results]) -> list[str]:
    """Return lines of when the job and its last attempt began and how long it took, or waits."""
    status, took = job.status, _time(job, attempts)
    if status.state in _WAITING:
        if status.expected_at is None:
            what = "when it starts" if status.reason else "why, nor when it starts"
            silent = f"; Slurm does not say yet {what}" * job.submission.kind.scheduled
            return [f"  waiting    {took} so far{silent}"]
        return [f"  waiting    {took} so far{expected_start(job)}"]
    if status.started_at is None or took == "-":
        return []
    ran = f"; {'ran' if status.state.final else 'runs'} for {took}"
    began = min(
        (node.started_at for one in attempts for node in one.nodes if node.started_at > 0),
        default=status.started_at,
    )
    waited = in_words(max(0.0, began - job.submission.submitted_at))
    started = f"  started    {_moment(began)}, after {waited}"
    if began >= status.started_at:
        return [started + ran]
    last = attempts[-1]
    is_over = all(node.ended_at <= status.started_at for node in last.nodes)
    attempt = f"attempt {last.attempt + 1 + is_over}"
    return [started, f"  restarted  {_moment(status.started_at)}, {attempt}{ran}"]


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
