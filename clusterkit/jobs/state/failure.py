"""What there is to tell of a failed job beyond its state: node, rank, last words."""

from __future__ import annotations

from clusterkit.core.model import JobState, NodeResult
from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import listed
from clusterkit.jobs.logs import LogReader
from clusterkit.jobs.state.load import Job

_BATCH = "_batch.out"
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

    There srun says why it started nothing, and bash why the script ended. Empty where a node tells.
    """
    if job.status.state is not JobState.FAILED or failure_of(job) is not None:
        return ()
    name = max((n for n in listed(job.run.submitit) if n.endswith(_BATCH)), default=None)
    if name is None:
        return ()
    reader = LogReader(job.run.submitit / name, tail=_LINES)
    text = "".join((*reader.pieces(), *reader.rest()))
    return tuple(line for line in text.splitlines() if line.strip())[-_LINES:]
