"""Diagnose a submitted job from its run folder, or any files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import JobState
from clusterkit.core.text.listing import some_of
from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import RunFolder, read_submission
from clusterkit.executors.submission import fetch
from clusterkit.jobs.document import name_of
from clusterkit.jobs.state.load import Job, load_job
from clusterkit.observe.diagnose.events import Source
from clusterkit.observe.diagnose.facts import facts_of
from clusterkit.observe.diagnose.rules import Rule
from clusterkit.observe.diagnose.verdict import Diagnosis, Known, diagnose

_SUFFIXES = frozenset({".log", ".out", ".err", ".txt"})
_ROTATED = re.compile(r"(?:[.-]\d{1,20}){0,4}(?:\.(?:gz|bz2|xz|zst|lz4|zip))?$")
"""What logrotate and others append to the name of a log."""
_MOST_NAMED = 3
_REQUEUED = "preempted"
"""The rule of attempts that Slurm has put back into the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The logs that files and folders stand for."""

    sources: tuple[Source, ...]
    notes: tuple[str, ...]
    """What of the folders is left out."""


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
            fetch(run, submission)
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
        failed=state.final and state is not JobState.SUCCEEDED,
    )
    found = diagnose([*_of_last_attempt(rules, job)], told.sources, known)
    # Where all went well, nobody has to print: often the first rank alone does.
    notes = told.notes if state not in {JobState.PENDING, JobState.SUCCEEDED} else ()
    return JobDiagnosis(job=job, diagnosis=replace(found, notes=(*notes, *found.notes)))


def _of_last_attempt(rules: Sequence[Rule], job: Job) -> Iterator[Rule]:
    """Yield the rules that may explain how a job ended.

    In the scheduler's own output the ends of all attempts stand below each other: that one was
    requeued explains nothing where the last has ended otherwise.
    """
    last, state = node_results.read_results(job.run), job.status.state
    otherwise = state is JobState.TIMEOUT or (
        state.final
        and state is not JobState.PREEMPTED
        and last.attempt > 0
        and all(one.reason != "preempted" for one in last.nodes)
    )
    yield from (rule for rule in rules if not (otherwise and rule.id == _REQUEUED))


def named_as_log(name: str) -> bool:
    """Tell whether a name ends as those of logs do, also of rotated ones."""
    return Path(_ROTATED.sub("", name)).suffix in _SUFFIXES


def sources_of(paths: Sequence[Path]) -> Given:
    """Return the logs that these files and folders stand for; of a folder, all that are in it.

    Raises:
        UserError: there is no such file, or no log in a folder.
    """
    found: list[Path] = []
    notes: list[str] = []
    for path in paths:
        if path.is_dir():
            inside, others = _logs_in(path)
            if not inside:
                raise UserError(f"{path} holds no logs", hint="name the files themselves")
            found += inside
            if others:
                names = some_of([str(p.relative_to(path)) for p in others], _MOST_NAMED)
                notes.append(f"{path}: not read, as not named as logs are: {names}")
        elif path.exists():
            found.append(path)
        else:
            raise UserError(
                f"there is no file {path}",
                hint="clusterkit diagnose latest, or name log files; clusterkit status lists jobs",
            )
    sources = tuple(Source(path=path) for path in dict.fromkeys(map(_without_links, found)))
    return Given(sources=sources, notes=tuple(notes))


def _without_links(path: Path) -> Path:
    """Return a path that can be opened as it is: links are followed here, where the user named it.

    Those of a run folder are not (`core/reading.py`).
    """
    return path.resolve() if path.is_symlink() or path.parent.is_symlink() else path


def _logs_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the logs of a folder, and its other files; a name without a suffix may be of a log."""
    logs: list[Path] = []
    others: list[Path] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            bare = not Path(_ROTATED.sub("", path.name)).suffix
            (logs if bare or named_as_log(path.name) else others).append(path)
    return logs, others
