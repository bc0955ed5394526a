"""Conclude the state of a job from everything that is known of it; nothing is looked at here.

What its nodes reported counts first, then what the scheduler says. A job that neither knows is
`unknown`, however long ago it was submitted: nothing is concluded from absence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from clusterkit.core.model import JobState, JobStatus, NodeResult
from clusterkit.executors import SchedulerState, executor_for
from clusterkit.executors.base import QUEUED
from clusterkit.executors.run import attempts, node_results
from clusterkit.executors.run.attempts import restarts
from clusterkit.executors.run.dependencies import Condition, waiting_for, why_never
from clusterkit.executors.run.hangs import Hang
from clusterkit.executors.run.node_results import Results
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.run.submit_journal import Handing

_MAY_RETURN = frozenset({"PREEMPTED", "NODE_FAIL"})
"""States that Slurm shows for a moment before it starts the same job again."""

_NO_REASON = frozenset({None, "NonZeroExitCode"})
_BY_CANCEL = frozenset({"cancelled", "peer", *node_results.TOLD_TO_END})
"""How nodes end that are told so one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything from which the state of a job is concluded."""

    submission: Submission
    results: Results
    first_failure: NodeResult | None
    cancelled: bool
    scheduler: SchedulerState | None
    """None where the scheduler does not know the job."""
    silence: str | None = None
    """Why the scheduler could not be asked, where it could not."""
    handing: Handing | None = None
    """How far handing it over has come, of a job without an id."""
    under_way: bool = False
    """Whether somebody may still be handing it over."""
    now: float = 0.0
    """Seconds since the epoch."""
    last_failed: int = 0
    """The latest attempt of which a first failure is known."""
    left_out: int = 0
    """How many nodes a next attempt could not use."""
    rounds: tuple[tuple[str, ...], ...] = ()
    """Who trained together in the latest attempt of an elastic job, round by round."""
    why_again: str | None = None
    """Why the job was given back to its scheduler, or restarts in its allocation."""
    restarted: int = 0
    """How many attempts before the latest were followed on the nodes that the job has."""
    pause_s: float = 0.0
    """How long the next one waits."""
    in_vain: str | None = None
    """How it is known that the latest attempt failed as the one before did."""

    hang: Hang | None = None
    """What a node has noticed of the latest attempt, which makes no progress."""

    @property
    def scheduled(self) -> bool:
        """Whether a scheduler speaks of the job, and not a process of ours that knows better."""
        return self.submission.kind.scheduled

    @property
    def attempt(self) -> int:
        """How often the job has been started again."""
        slurm = self.scheduler.attempt if self.scheduler is not None else 0
        return max(self.results.attempt, self.last_failed, slurm)


def evaluate(evidence: Evidence) -> JobStatus:
    """Conclude the state of a job from everything that is known of it."""
    failure, slurm = evidence.first_failure, evidence.scheduler
    limit = evidence.scheduled and slurm is not None and slurm.state is JobState.TIMEOUT
    if (evidence.cancelled or limit) and failure is not None and failure.lost is not None:
        # Ended while it was not over: nodes that end one after the other miss each other.
        evidence = replace(evidence, first_failure=None)
    names = tuple(result.node for result in evidence.results.nodes)
    state, reason = _without_id(evidence) or _state(evidence)
    elastic_job = evidence.submission.least is not None
    if elastic_job and reason is None and state in {JobState.RUNNING, JobState.SUCCEEDED}:
        reason = attempts.losses(evidence.rounds, evidence.results.nodes)
    if evidence.hang is not None and state is JobState.RUNNING:
        reason = evidence.hang.text
    unwritten = node_results.unwritten_in_words(evidence.results.nodes)
    if unwritten and state is JobState.FAILED and _says_nothing(reason, evidence.results.nodes):
        reason = node_results.unwritten_failure(evidence.results.nodes)
    failed = state is JobState.FAILED
    why = (evidence.in_vain or _spares_used_up(evidence)) if failed else None
    reason = "; ".join(part for part in (reason, why, unwritten) if part) or None
    return JobStatus(
        state=state,
        exit_code=_exit_code(evidence, state),
        reason=reason,
        nodes=names,
        time_limit_s=slurm.limit_s if slurm is not None else None,
        **_times(evidence, state),
    )


def _says_nothing(reason: str | None, results: Iterable[NodeResult]) -> bool:
    """Tell whether this is no reason, or the exit code of a node that could not begin."""
    unbegun = [result for result in results if result.message == node_results.UNBEGUN]
    return reason in {*_NO_REASON, *map(node_results.failure_text, unbegun)}


def _spares_used_up(evidence: Evidence) -> str | None:
    submission = evidence.submission
    gone = submission.spares > 0 and evidence.left_out > submission.dispensable
    return "no spare is left" if gone else None


def _times(evidence: Evidence, state: JobState) -> dict[str, float]:
    """Return when the latest attempt began and ended, as its nodes say, or is to begin."""
    results = evidence.results.nodes
    known = evidence.scheduler.start if evidence.scheduler is not None else None
    if state in {JobState.PENDING, JobState.REQUEUED}:
        return {} if known is None or known < evidence.now else {"expected_at": known}
    if state.final and not results:
        return {}
    began = min((result.started_at for result in results), default=known)
    times = {} if began is None else {"started_at": began}
    return {**times, "ended_at": max(one.ended_at for one in results)} if state.final else times


def _state(evidence: Evidence) -> tuple[JobState, str | None]:
    slurm = evidence.scheduler
    if slurm is not None and not evidence.scheduled:
        return _again(evidence, slurm) or (slurm.state, slurm.reason)
    if _went_well(evidence):
        return JobState.SUCCEEDED, None
    if _is_over(evidence) and evidence.first_failure:
        return JobState.FAILED, node_results.failure_text(evidence.first_failure)
    if slurm is not None:
        return _as_scheduler_says(evidence, slurm)
    if evidence.silence is not None:
        return JobState.UNKNOWN, evidence.silence
    return _from_results(evidence)


def _without_id(evidence: Evidence) -> tuple[JobState, str | None] | None:
    """Tell what is known of a job that nobody has an id of; None where its nodes know more."""
    handing = evidence.handing
    if handing is None or evidence.results.nodes or evidence.first_failure is not None:
        return None
    if not evidence.under_way and handing.at is None and handing.client.here:
        who = f"process {handing.client.pid} on {handing.client.host}"
        return _never(evidence), f"never submitted: its client ({who}) was gone before"
    if evidence.scheduler is not None or not (evidence.under_way or evidence.scheduled):
        return None
    if evidence.under_way:
        return JobState.PENDING, "being submitted"
    return _unconfirmed(evidence, handing)


def _unconfirmed(evidence: Evidence, handing: Handing) -> tuple[JobState, str]:
    """Tell of a job of which sbatch did not say whether it was accepted."""
    why = handing.answer or "its client was gone before sbatch had answered"
    limit = handing.never_after
    if evidence.silence is not None:
        return JobState.UNKNOWN, f"{evidence.silence}; whether it took the job is open: {why}"
    if limit is not None and evidence.now >= limit:
        never = "never ran" if handing.looked_late else "never submitted"
        return _never(evidence), f"{never}: {why}, and Slurm knows of no such job"
    if limit is None:
        host = handing.client.host
        return JobState.UNKNOWN, f"{why}; this host's Slurm does not list the job: look on {host}"
    left = f"within {limit - evidence.now:.0f} s"
    return JobState.UNKNOWN, f"{why}; Slurm does not list the job, and may still take it {left}"


def _never(evidence: Evidence) -> JobState:
    return JobState.CANCELLED if evidence.cancelled else JobState.FAILED


def _went_well(evidence: Evidence) -> bool:
    """Tell whether the results say that the job is over, and ended well.

    Ranks that Slurm told to end at the time limit may have obeyed with exit code 0: whether they
    did, or had ended just before, Slurm says.
    """
    results, slurm = evidence.results.nodes, evidence.scheduler
    min_nodes = evidence.submission.least
    if slurm is not None and slurm.state is not JobState.SUCCEEDED and _at_limit(results, slurm):
        return False
    if _complete(evidence) and all(result.exit_code == 0 for result in results):
        return True
    over = slurm is None or slurm.state.final or slurm.word == "COMPLETING"
    return over and min_nodes is not None and attempts.succeeded(results, min_nodes=min_nodes)


def _at_limit(results: Iterable[NodeResult], slurm: SchedulerState) -> bool:
    """Tell whether a node ended when the time of the job was up, as far as that is known."""
    if slurm.start is None or slurm.limit_s is None:
        return slurm.state is JobState.TIMEOUT
    return any(result.ended_at >= slurm.start + slurm.limit_s for result in results)


def _again(evidence: Evidence, slurm: SchedulerState) -> tuple[JobState, str | None] | None:
    """Tell where a job ended that its clients start again; None where it stays as it is."""
    submission, failure = evidence.submission, evidence.first_failure
    results = evidence.results.nodes if evidence.results.attempt == evidence.attempt else ()
    again = submission.kind.lists_hosts and restarts(
        slurm.state,
        failure,
        attempt=evidence.attempt,
        left_out=evidence.left_out,
        submission=submission,
        excused=node_results.is_excused(submission, results, failure, evidence.in_vain),
        restarted=evidence.restarted,
    )
    if not again:
        return None
    if evidence.cancelled:
        return JobState.CANCELLED, None
    why = "time limit" if slurm.state is JobState.TIMEOUT else slurm.reason
    return JobState.REQUEUED, f"{why}; {_next_attempt(evidence)}"


def _next_attempt(evidence: Evidence) -> str:
    pause = f" after a pause of {evidence.pause_s:.0f} s" if evidence.pause_s else ""
    return f"attempt {evidence.attempt + 2} of {evidence.submission.most_attempts}{pause}"


def _as_scheduler_says(evidence: Evidence, slurm: SchedulerState) -> tuple[JobState, str | None]:
    failed = [result for result in evidence.results.nodes if result.exit_code != 0]
    again = attempts.may_follow(evidence.submission, evidence.results.attempt)
    if slurm.state is JobState.PENDING and evidence.results.nodes:
        why = f"{evidence.why_again}; " if evidence.why_again else ""
        waits_for = f": {slurm.reason}" if slurm.reason else ""
        return JobState.REQUEUED, f"{why}{_next_attempt(evidence)} is queued{waits_for}"
    if slurm.word in _MAY_RETURN and again:
        return JobState.REQUEUED, slurm.word.lower()
    # Who told the nodes to end, scancel or a limit, Slurm will say.
    known = evidence.cancelled or any(result.reason != node_results.TERMINATED for result in failed)
    if slurm.word == "COMPLETING" and _complete(evidence) and failed and not again and known:
        return _from_results(evidence)  # an epilogue may take minutes; the job itself is over
    if slurm.state is JobState.SUCCEEDED and failed:
        return JobState.FAILED, node_results.failure_text(evidence.first_failure or failed[0])
    first = evidence.first_failure
    ended_itself = first is not None and first.lost is not None and not evidence.cancelled
    if slurm.state is JobState.FAILED or (slurm.state is JobState.CANCELLED and ended_itself):
        return _why_it_failed(evidence, slurm)
    return slurm.state, _why_it_is_so(evidence, slurm)


def _why_it_is_so(evidence: Evidence, slurm: SchedulerState) -> str | None:
    if slurm.state is JobState.RUNNING and evidence.why_again:
        before = f"attempt {evidence.attempt + 1} ended: {evidence.why_again}"
        return f"{_next_attempt(evidence)}; {before}"
    # While it runs, such a word is of the attempt before.
    told = slurm.state is not JobState.RUNNING or slurm.reason not in _NO_REASON
    return slurm.reason if told else None


def _why_it_failed(evidence: Evidence, slurm: SchedulerState) -> tuple[JobState, str | None]:
    if evidence.first_failure is not None:
        return JobState.FAILED, node_results.failure_text(evidence.first_failure)
    reasons = {result.reason for result in evidence.results.nodes if result.exit_code != 0}
    if reasons == {"cancelled"} or (evidence.cancelled and reasons and reasons <= _BY_CANCEL):
        return JobState.CANCELLED, None
    # A time limit as well: a node may have left between Slurm's notice and the limit.
    told = node_results.why_told_to_end(evidence.results.nodes)
    return told or (JobState.FAILED, slurm.reason)


def _from_results(evidence: Evidence) -> tuple[JobState, str | None]:
    failed_as = node_results.how_it_failed(
        evidence.results.nodes, evidence.first_failure, cancelled=evidence.cancelled
    )
    if failed_as is not None:
        return failed_as
    count = len(evidence.results.nodes)
    who = executor_for(evidence.submission.kind).absence
    return JobState.UNKNOWN, f"{who}, and {count} of {_expected(evidence)} nodes have reported"


def _exit_code(evidence: Evidence, state: JobState) -> int | None:
    if state is JobState.SUCCEEDED:
        return 0
    if not state.final:
        return None
    first = node_results.first_exit_code(evidence.results.nodes, evidence.first_failure)
    if first is not None:
        return first
    return (evidence.scheduler.exit_code or None) if evidence.scheduler is not None else None


def _expected(evidence: Evidence) -> int:
    # Only the nodes of an attempt know how many an elastic job was given.
    submission = evidence.submission
    return 1 if submission.once else evidence.results.of or submission.tasks


def _is_over(evidence: Evidence) -> bool:
    """Tell whether this attempt has ended and no other may follow it.

    A node that has gone says no more, and Slurm may take long to notice.
    """
    results, failure = evidence.results, evidence.first_failure
    reported = {result.node_rank for result in results.nodes}
    if failure is not None and failure.lost is not None:
        reported.add(failure.node_rank)
    slurm = evidence.scheduler
    resumes = slurm is not None and slurm.word == "RUNNING" and evidence.submission.resumes
    may_follow = resumes or attempts.may_follow(evidence.submission, results.attempt)
    return len(reported) >= _expected(evidence) and not may_follow


def _complete(evidence: Evidence) -> bool:
    return len(evidence.results.nodes) >= _expected(evidence)


_NEVER = "DependencyNeverSatisfied"
"""Slurm's reason, in `squeue`; sacct gives none."""
_READY = "may start now"


def explained(
    status: JobStatus,
    evidence: Evidence,
    states_of: Callable[[Iterable[RunFolder]], Mapping[str, JobState]],
) -> JobStatus:
    """Return the state with that reason; as it is where there is none.

    `states_of` tells the states of other jobs, by the paths of their run folders.

    Also a job that Slurm has forgotten is known to have been cancelled, if what it waited for can
    never happen: Slurm was told to end it then. A held job ends here: nobody else would end it.
    """
    held = evidence.scheduler is not None and evidence.scheduler.word == QUEUED
    if not (held or _may_have_waited(status, evidence)):
        return status
    # Jobs that it follows in any case are not asked: an array with a limit is a chain of those.
    after = [one for one in evidence.submission.after if one.ending is not Condition.ANY]
    why = why_never(after, states_of(RunFolder(Path(one.run_dir)) for one in after))
    if why is None and held:
        why = _folder_gone(evidence)
    if why is not None:
        return dataclasses.replace(status, state=JobState.CANCELLED, reason=why)
    return dataclasses.replace(status, reason=_what_is_left(evidence)) if held else status


def _may_have_waited(status: JobStatus, evidence: Evidence) -> bool:
    """Tell whether Slurm may have ended the job because of another one."""
    ran = bool(evidence.results.nodes) or evidence.attempt > 0
    if not evidence.submission.after or ran or evidence.cancelled:
        return False
    forgotten = status.state is JobState.UNKNOWN and evidence.silence is None
    ended = status.state is JobState.CANCELLED and (status.reason or _NEVER) == _NEVER
    return forgotten or ended


def _folder_gone(evidence: Evidence) -> str | None:
    for one in evidence.submission.after:
        if not Path(one.run_dir).exists():
            return f"the run folder of {one.job_id} is gone, and it was to run after that job"
    return None


def _what_is_left(evidence: Evidence) -> str:
    """Return which jobs have not ended, as far as somebody has looked."""
    after = evidence.submission.after
    left = [one for one in after if not RunFolder(Path(one.run_dir)).state.exists()]
    return waiting_for(left) if left else _READY
