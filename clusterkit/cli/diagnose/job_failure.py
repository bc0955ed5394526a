"""What the verbs that wait for a job print below its state: last words, and the diagnosis."""

from __future__ import annotations

from clusterkit.cli.diagnose.log_tail import LAST_ROWS, last_words, rows
from clusterkit.cli.frame import console
from clusterkit.core.errors import ClusterkitError
from clusterkit.core.model import JobState
from clusterkit.jobs import Job

TOLD = frozenset({JobState.FAILED, JobState.TIMEOUT, JobState.PREEMPTED})


def why_failed(job: Job) -> list[str]:
    """Return the last words of a job that did not succeed, and the diagnosis of its logs.

    Of one that did, what makes that doubtful.
    """
    words = last_words(job)
    if job.status.state is JobState.SUCCEEDED:
        from clusterkit.cli.jobs.trained_alone import trained_alone

        return [*words, *trained_alone(job)]
    if job.status.state not in TOLD:
        return words
    from clusterkit.cli.diagnose.report import answer
    from clusterkit.cli.diagnose.verb import advice_for
    from clusterkit.observe.diagnose.job import diagnose_job
    from clusterkit.observe.diagnose.rules import load_rules

    try:
        found = diagnose_job(job, load_rules())
        cause = found.diagnosis.cause
        advice = advice_for(found)
    except ClusterkitError:  # the job's own end is what was waited for
        return words
    if cause is None:
        return words
    if cause.evidence.line and not any(cause.evidence.text[:60] in word for word in words):
        words += [console.dim(row) for row in rows(cause.evidence.text, LAST_ROWS)]
    return [*words, *answer(cause, advice)]
