"""What the verbs about jobs do with a whole array."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from clusterkit.cli.diagnose.report import TOLD, why_failed
from clusterkit.cli.frame import console
from clusterkit.cli.frame.job_args import exit_code_of, said
from clusterkit.cli.frame.main import EXIT_INTERRUPTED
from clusterkit.config.load import load_settings
from clusterkit.core.model import JobState
from clusterkit.core.text.listing import table
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.document import document_of, name_of
from clusterkit.jobs.find import find_runs, run_roots
from clusterkit.jobs.start_queued import may_need_client
from clusterkit.jobs.state.load import Job, load_jobs
from clusterkit.jobs.watch import wait_for_all

_MOST_ROWS = 40
_QUIET = frozenset({JobState.SUCCEEDED, JobState.PENDING})
_UNDER_WAY = frozenset({JobState.PENDING, JobState.RUNNING, JobState.REQUEUED})


def runs_of(array: str) -> tuple[RunFolder, ...]:
    """Return the run folders of an array, in order.

    Raises:
        UserError: there is no such array.
    """
    return find_runs(array, run_roots(load_settings().clusters.values()))


def show_array(array: str, *, as_json: bool) -> int:
    """Tell the state of every job of an array; return the exit code of the verb."""
    jobs = load_jobs(runs_of(array))
    if as_json:
        console.json_document(array_document(array, jobs))
    else:
        console.say(f"{console.bold(array)}  {counted(jobs)}")
        for line in _rows(jobs):
            console.say(line)
    return 0 if any(job.status.state in _UNDER_WAY for job in jobs) else worst(jobs)


def wait_for_array(
    array: str, runs: Sequence[RunFolder], *, as_json: bool = False, verb: str = "wait"
) -> int:
    """Wait for every job of an array, and return the exit code of the verb."""

    def changed(job: Job) -> None:
        console.note(f"{label_of(job)} {said(job)}")

    try:
        jobs = wait_for_all(runs, changed=changed, on_trouble=console.warn)
    except KeyboardInterrupt:
        console.note(f"\nthe jobs go on; come back: clusterkit {verb} {array}")
        if any(may_need_client(run) for run in runs):
            console.note("until then nobody starts those whose time comes, or starts any again")
        return EXIT_INTERRUPTED
    console.note(f"{array} {counted(jobs)}")
    _tell_why(array, jobs)
    if as_json:
        console.json_document(array_document(array, jobs))
    return worst(jobs)


def _tell_why(array: str, jobs: Sequence[Job]) -> None:
    """Say why the first job that failed did, and how to ask of the others."""
    failed = [job for job in jobs if job.status.state in TOLD]
    if not failed:
        return
    first, *others = failed
    console.note(f"{array}/{first.submission.index} ended so:")
    for line in why_failed(first):
        console.note(line)
    if others:
        ask = f"clusterkit diagnose {array}/{others[0].submission.index}"
        console.note(f"{len(others)} more did not succeed: {ask}")


def array_document(array: str, jobs: Sequence[Job]) -> dict[str, Any]:
    """Return what `--json` tells of an array."""
    counts = Counter(job.status.state.value for job in jobs)
    return {"array": array, "jobs": [document_of(job) for job in jobs], "counts": counts}


def counted(jobs: Sequence[Job]) -> str:
    """Return `3 succeeded, 1 failed`."""
    counts = Counter(job.status.state for job in jobs)
    return ", ".join(f"{counts[state]} {state.value}" for state in JobState if counts[state])


def label_of(job: Job) -> str:
    """Return how the lines about an array call one of its jobs: its number, and its own id."""
    return f"{job.submission.array}/{job.submission.index} {name_of(job)}"


def worst(jobs: Sequence[Job]) -> int:
    """Return 1 if any job failed, else 2 if nobody can tell of one, else 0."""
    codes = {exit_code_of(job) for job in jobs}
    return 1 if 1 in codes else max(codes, default=0)


def _rows(jobs: Sequence[Job]) -> list[str]:
    """Return one line a job; of very many only those about which there is something to say."""
    shown = list(jobs)
    if len(shown) > _MOST_ROWS:
        shown = [job for job in jobs if job.status.state not in _QUIET][-_MOST_ROWS:]
    cells = [(job.submission.index, name_of(job), job.submission.name, said(job)) for job in shown]
    rows = [f"  {line}" for line in table(cells, ">", widths=(4,))]
    left = len(jobs) - len(shown)
    return [*rows, f"  and {left} more: --json lists all"] if left else rows
