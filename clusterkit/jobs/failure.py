"""What there is to tell of a failed job beyond its state: node, rank, last words."""

from __future__ import annotations

from clusterkit import node_results
from clusterkit.jobs.state import Job
from clusterkit.model import JobState, NodeResult


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
