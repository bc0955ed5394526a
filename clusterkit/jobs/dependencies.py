"""`--after JOB`: which jobs that is, and whether a new job can be made to wait for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from clusterkit.core.errors import Problem, UserError
from clusterkit.core.model import ClusterKind, JobState
from clusterkit.core.shell import quote
from clusterkit.executors.run.dependencies import Condition, Dependency, parse_after
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.find import find_runs
from clusterkit.jobs.state.load import Job, load_jobs


def conditions(
    texts: Iterable[str], roots: Sequence[Path], kind: ClusterKind
) -> tuple[Dependency, ...]:
    """Return what a new job on a cluster of this kind has to wait for, by the words of `--after`.

    Jobs that have ended as they should are not among it: Slurm may have forgotten them, and would
    take a job that it does not know for one that succeeded.

    Raises:
        UserError: there is no such job, it ended otherwise, it cannot be waited for from there,
            or two conditions on it can never hold together.
    """
    requested = [(text, *parse_after(text)) for text in texts]
    endings: dict[RunFolder, list[tuple[str, Condition]]] = {}
    for text, name, ending in requested:
        for run in find_runs(name, roots).runs:
            run.require_own("let a job wait for it")
            endings.setdefault(run, []).append((text, ending))
    left: dict[Dependency, None] = {}
    problems: list[Problem] = []
    for job in load_jobs(endings):
        problems += _contradictions(job, endings[job.run])
        for text, ending in endings[job.run]:
            condition = _condition(job, ending)
            holds = condition.is_met(job.status.state)
            if holds is None:
                left[condition] = None
                problems += _unkept(job, text, kind)
            elif not holds:
                why = condition.why_never(job.status.state).partition(", and ")[0]
                message = f"--after {text}: {why}, so this job would never run"
                hint = f"--after {quote(parse_after(text)[0])}:any, or leave it out"
                problems.append(Problem(message=message, hint=hint))
    if problems:
        raise UserError(problems=list(dict.fromkeys(problems)))
    return tuple(left)


def _condition(job: Job, ending: Condition) -> Dependency:
    name = job.submission.job_id or job.run.run_id
    return Dependency(run_dir=str(job.run.path), job_id=name, ending=ending)


def _contradictions(job: Job, requested: Sequence[tuple[str, Condition]]) -> list[Problem]:
    """Return that the job is asked both to succeed and to fail; nothing where it is over."""
    texts = {ending: text for text, ending in requested}
    if job.status.state.final or not {Condition.OK, Condition.FAIL} <= texts.keys():
        return []
    both = f"--after {texts[Condition.OK]} and --after {texts[Condition.FAIL]}"
    name = job.submission.job_id or job.run.run_id
    message = f"{both} can never hold together"
    return [Problem(message=message, hint=f"--after {name}:any, or leave one of them out")]


def _unkept(job: Job, word: str, kind: ClusterKind) -> list[Problem]:
    """Return why a job of this kind cannot wait for the other one; nothing where it can."""
    name = job.submission.job_id or job.run.run_id
    if job.status.state is JobState.UNKNOWN:
        message = f"--after {word}: nobody can tell how {name} ends: {job.status.reason}"
        return [Problem(message=message, hint=f"clusterkit status {name}")]
    if not kind.scheduled:
        return []
    if not job.submission.kind.scheduled:
        message = f"--after {word}: Slurm cannot wait for {name}, which is not its own"
        return [Problem(message=message, hint=f"clusterkit wait {name} && clusterkit submit ...")]
    if job.submission.job_id is None:
        message = f"--after {word}: {job.run.run_id} has no job id yet"
        return [Problem(message=message, hint="try again in a moment")]
    return []
