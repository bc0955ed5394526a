"""What there is to tell of a failed job beyond its state: node, rank, last words."""

from __future__ import annotations

from clusterkit import node_results
from clusterkit.jobs.logs import LogReader
from clusterkit.jobs.state import Job
from clusterkit.model import JobState, NodeResult
from clusterkit.runfolder import listed

_BATCH = "_batch.out"
_TASK = "_log.out"
_LINES = 15


def failure_of(job: Job) -> NodeResult | None:
    """Return how the first node to fail has failed; None where the job has not, or none tells.

    Reads the results again: a kept state, as listings need it, does not hold them.
    """
    if job.status.state is not JobState.FAILED:
        return None
    results = node_results.read_results(job.run)
    attempt = node_results.latest_attempt(job.run)
    own = (result for result in results.nodes if result.exit_code and result.reason is None)
    return node_results.first_failure(job.run, attempt) or next(own, None)


def batch_output(job: Job) -> tuple[str, ...]:
    """Return the last lines of the batch script of a job that failed before any node could tell.

    There srun says why it started nothing, and bash why the script ended; before them stand those
    of the first task that said anything, as a shell whose Python is not there. Empty where a node
    tells.
    """
    if job.status.state is not JobState.FAILED or failure_of(job) is not None:
        return ()
    names = listed(job.run.submitit)
    batch = max((name for name in names if name.endswith(_BATCH)), default=None)
    if batch is None:
        return ()
    tasks = sorted(name for name in names if name.startswith(batch.removesuffix("batch.out")))
    said = (_end_of(job, name) for name in tasks if name.endswith(_TASK))
    return (*next(filter(None, said), ()), *_end_of(job, batch))


def _end_of(job: Job, name: str) -> tuple[str, ...]:
    reader = LogReader(job.run.submitit / name, tail=_LINES)
    text = "".join((*reader.pieces(), *reader.rest()))
    return tuple(line for line in text.splitlines() if line.strip())[-_LINES:]
