"""The states of a job."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.cli.explain.topic import Topic, first_sentence, paragraphs, table
from clusterkit.core.model import JobState

MEANING = {
    JobState.PENDING: (
        "Handed over, and waiting for nodes. The scheduler gives the reason (Priority, "
        "Resources, ...): `clusterkit status JOB`. Over ssh and on this machine, where nothing "
        "queues jobs, one that waits for others is started by `clusterkit supervise JOB`, `wait` "
        "or `logs -f`."
    ),
    JobState.RUNNING: "Has its nodes. `clusterkit logs JOB -f` follows its output.",
    JobState.SUCCEEDED: (
        "Every node reported exit code 0. Only the results of the nodes, or the scheduler's own "
        "record of completion, can say so."
    ),
    JobState.FAILED: (
        "The command of a node ended with another exit code than 0, or a node was lost. "
        "`clusterkit logs JOB` shows how it ended; `clusterkit explain exit-codes` says what the "
        "code means."
    ),
    JobState.CANCELLED: (
        "Ended by `clusterkit cancel`, scancel or an administrator; or never started, because a "
        "job that it was to run after has not ended as it should."
    ),
    JobState.TIMEOUT: "Reached its time limit. Give it more with --time.",
    JobState.PREEMPTED: (
        "Lost its nodes to a job of higher priority. With --requeue N it goes back to the queue "
        "by itself, N times at most."
    ),
    JobState.REQUEUED: (
        "Back in the queue after a preemption or a lost node; it starts again under the same job "
        "id, with CK_RESTART_COUNT raised by one."
    ),
    JobState.UNKNOWN: (
        "Nobody can tell: the scheduler does not list the job any more (or does not answer), and "
        "the job left no result; or sbatch did not say whether it took the job. It is never taken "
        "for success: `clusterkit wait JOB` looks again, and the run folder has what was left."
    ),
}


def topics() -> Iterator[Topic]:
    """Yield the list of states, and one topic for each."""
    yield Topic(
        name="states",
        summary="pending, running, succeeded, ... and how they are known",
        text=table((state.value, first_sentence(text)) for state, text in MEANING.items()),
    )
    for state, text in MEANING.items():
        # The one word that is a verdict, too.
        verdict = "Of a check: `clusterkit explain verdicts`."
        ending = "The job has ended." if state.final else "The job has not ended."
        yield Topic(
            name=state.value,
            summary=first_sentence(text),
            text=paragraphs(text, ending if state is not JobState.UNKNOWN else verdict),
            group="states",
        )
