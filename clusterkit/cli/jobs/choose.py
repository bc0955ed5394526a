"""Which jobs `status`, `report` and `cancel --all` are about."""

from __future__ import annotations

import re
import time
from fnmatch import fnmatchcase

from clusterkit.cli.frame.job_args import all_runs, note_others
from clusterkit.config.load import load_settings
from clusterkit.core import files
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.model import JobState
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission

_AGO = re.compile(r"([1-9][0-9]{0,4})([mhdw])", re.ASCII)
_UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def chosen_runs(
    *, cluster: str | None = None, name: str | None = None, since: str | None = None
) -> list[RunFolder]:
    """Return this user's runs that all of these choose, oldest first; all where none is given.

    No scheduler is asked, so old jobs cost nothing.

    Raises:
        UserError: no such cluster, or `since` is not a length of time.
    """
    began = 0.0 if since is None else time.time() - seconds_of("--since", since)
    runs = all_runs()
    note_others()
    if cluster is None and name is None and since is None:
        return runs
    known = {run: submission for run in runs if (submission := _submission(run)) is not None}
    if cluster is not None:
        _check_cluster(cluster, {submission.cluster for submission in known.values()})
    return [
        run
        for run, submission in known.items()
        if (cluster is None or submission.cluster == cluster)
        and (name is None or fnmatchcase(submission.name, name))
        and submission.submitted_at >= began
    ]


def states_named(text: str | None) -> frozenset[JobState]:
    """Return the states that `--state` lists, none where it is not given.

    Raises:
        UserError: one is no state.
    """
    names_given = [word.strip().lower() for word in (text or "").split(",")]
    names = [word for word in names_given if word]
    for name in names:
        if name not in set(JobState):
            raise UserError(
                f"--state {name}: there is no such state",
                hint=choices_hint(name, [state.value for state in JobState]),
            )
    return frozenset(JobState(name) for name in names)


def seconds_of(flag: str, text: str) -> float:
    """Return the seconds of a length of time that a flag was given.

    Raises:
        UserError: it is none.
    """
    found = _AGO.fullmatch(text.strip())
    if found is None:
        raise UserError(f"{flag} {text}: not a length of time", hint=f"{flag} 30m, 12h, 7d or 4w")
    return int(found[1]) * _UNITS_S[found[2]]


def _submission(run: RunFolder) -> Submission | None:
    kept = runfolder.read_submission(run)
    return kept or runfolder.submission_of(files.read_json(run.state))


def _check_cluster(name: str, of_jobs: set[str]) -> None:
    """Refuse a cluster that neither the configuration nor any job knows.

    Raises:
        UserError: with the name that was meant.
    """
    known = {*load_settings().clusters, *of_jobs}
    if name not in known:
        raise UserError(f"unknown cluster {name!r}", hint=choices_hint(name, known))
