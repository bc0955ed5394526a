"""Diagnose a submitted job from its run folder, or any files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterkit.diagnose.facts import facts_of
from clusterkit.diagnose.rules import Rule
from clusterkit.diagnose.verdict import Diagnosis, Known, diagnose
from clusterkit.diagnose.weigh import Source
from clusterkit.errors import RemoteError, UserError
from clusterkit.executors import executor_for
from clusterkit.jobs.document import name_of
from clusterkit.jobs.state import Job, load_job
from clusterkit.model import JobState
from clusterkit.runfolder import RunFolder, read_submission

LOG_SUFFIXES = frozenset({".log", ".out", ".err", ".txt", ""})
"""Which files of a folder are logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDiagnosis:
    """A job, and what its logs and its run folder say of its failure."""

    job: Job
    diagnosis: Diagnosis


def diagnose_run(run: RunFolder, rules: Sequence[Rule]) -> JobDiagnosis:
    """Bring the logs of a job here where they are elsewhere, and diagnose it.

    Raises:
        UserError: its folder holds no submission.
    """
    submission = read_submission(run)
    notes: tuple[str, ...] = ()
    if submission is not None and not run.state.exists():
        try:
            executor_for(submission.kind).fetch(run)
        except RemoteError as error:  # what is here may tell enough
            notes = (f"what the nodes printed last could not be fetched: {error.message}",)
    found = diagnose_job(load_job(run), rules)
    known = found.diagnosis
    return replace(found, diagnosis=replace(known, notes=(*notes, *known.notes)))


def diagnose_job(job: Job, rules: Sequence[Rule]) -> JobDiagnosis:
    """Diagnose a job whose logs are here."""
    told = facts_of(job)
    state = job.status.state
    known = Known(
        job=name_of(job),
        folder=job.run.path,
        facts=told.facts,
        first=told.first,
        processes=told.processes,
        succeeded=state is JobState.SUCCEEDED,
    )
    found = diagnose(rules, told.sources, known)
    notes = told.notes if state is not JobState.PENDING else ()
    return JobDiagnosis(job=job, diagnosis=replace(found, notes=(*notes, *found.notes)))


def sources_of(paths: Sequence[Path]) -> tuple[Source, ...]:
    """Return the logs that these files and folders stand for; of a folder, all that are in it.

    Raises:
        UserError: there is no such file, or no log in a folder.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [
                p for p in sorted(path.rglob("*")) if p.suffix in LOG_SUFFIXES and p.is_file()
            ]
            if not inside:
                raise UserError(f"{path} holds no logs", hint="name the files themselves")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise UserError(
                f"there is no file {path}",
                hint="clusterkit diagnose latest, or name log files; clusterkit status lists jobs",
            )
    return tuple(Source(path=path) for path in dict.fromkeys(found))
