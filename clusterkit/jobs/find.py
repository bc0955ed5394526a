"""Find run folders: all of them, or the one that a word stands for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from clusterkit import files, runfolder
from clusterkit.errors import UserError, did_you_mean
from clusterkit.model import ClusterSpec
from clusterkit.runfolder import RunFolder

LATEST = "latest"
_SHOWN_CANDIDATES = 5


def run_roots(clusters: Iterable[ClusterSpec]) -> tuple[Path, ...]:
    """Return every folder in which these clusters keep their runs, each once."""
    paths = (Path(cluster.run_dir).expanduser().absolute() for cluster in clusters)
    return tuple(dict.fromkeys(paths))


def list_runs(roots: Iterable[Path]) -> list[RunFolder]:
    """Return every run below `roots`, oldest first."""
    found = []
    for root in roots:
        try:
            names = os.listdir(root)  # noqa: PTH208 - names are all that is needed of hundreds
        except OSError:
            continue
        found += [RunFolder(root / name) for name in names if runfolder.submitted_when(name)]
    return sorted(found, key=_moment)


def _moment(run: RunFolder) -> tuple[str, int]:
    """Return when a run was submitted: to the second by its name, and finer by its plan."""
    try:
        finer = run.plan.stat().st_mtime_ns  # written once, before anything is launched
    except OSError:
        finer = 0
    return runfolder.submitted_when(run.run_id), finer


def find_run(word: str, roots: Sequence[Path]) -> RunFolder:
    """Return the run that `word` names: a folder, a job id, a run name or its beginning, `latest`.

    Raises:
        UserError: there is none, or several.
    """
    path = Path(word).expanduser()
    if "/" in word or path.is_dir():
        # A link to a run folder may have any name; the run id is that of the folder itself.
        return _at(path.resolve())
    runs = list_runs(roots)
    if word == LATEST:
        # A folder without a submission belongs to one that is just being made.
        newest = next((run for run in reversed(runs) if _submitted(run)), None)
        if newest is not None:
            return newest
    exact = [run for run in runs if word in {run.run_id, f"local-{run.key}", f"ssh-{run.key}"}]
    found = (
        exact
        or _by_job_id(word, runs)
        or [run for run in runs if word == run.key]
        or [run for run in runs if run.run_id.startswith(word)]
    )
    if not found:
        raise _unknown(word, runs, roots)
    if len(found) > 1:
        raise UserError(
            f"{word!r} could be any of {len(found)} runs",
            hint="one of: " + " ".join(run.run_id for run in found[: -_SHOWN_CANDIDATES - 1 : -1]),
        )
    return found[0]


def job_id_in(run: RunFolder) -> str | None:
    """Return the job id that stands in a run folder; one small file is read."""
    job_id = (files.read_json(run.submission) or {}).get("job_id")
    return str(job_id) if job_id else None


def _by_job_id(word: str, runs: Sequence[RunFolder]) -> list[RunFolder]:
    """Return the newest run of this job id: schedulers use their ids again, years later."""
    if not word.isdigit():
        return []
    return next(([run] for run in reversed(runs) if job_id_in(run) == word), [])


def _submitted(run: RunFolder) -> bool:
    return run.submission.exists() or run.state.exists()


def _at(path: Path) -> RunFolder:
    run = RunFolder(path)
    if _submitted(run):
        return run
    raise UserError(
        f"{path} is no run folder" if path.is_dir() else f"no such folder: {path}",
        hint="`clusterkit status` lists the runs there are",
    )


def _unknown(word: str, runs: Sequence[RunFolder], roots: Sequence[Path]) -> UserError:
    if not runs:
        where = ", ".join(str(root) for root in roots)
        return UserError(f"no job {word!r}: there are no runs in {where}")
    known = [run.run_id for run in runs]
    if any(character.isdigit() for character in word):
        known += [job_id for run in runs if (job_id := job_id_in(run))]
    return UserError(
        f"no job {word!r}",
        hint=did_you_mean(word, known) or "`clusterkit status` lists the jobs there are",
    )
