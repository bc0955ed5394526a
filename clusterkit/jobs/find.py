"""Find run folders: all of them, or the one that a word stands for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core import files
from clusterkit.core.errors import UserError, did_you_mean
from clusterkit.core.model import ClusterSpec
from clusterkit.core.records import text_of
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.dependencies import ARRAY_ID
from clusterkit.executors.run.runfolder import RunFolder, read_submission
from clusterkit.launch.array.spec import fold_numbers

LATEST = "latest"
SHOWN_CANDIDATES = 5
_LONG_ID = 4
_ELSEWHERE = "`clusterkit status` lists the jobs in these folders; give the path of any other run"


class NoSuchJobError(UserError):
    """No run folder goes by the word that the user typed."""


class SeveralRunsError(UserError):
    """Several runs go by the word that the user typed."""

    def __init__(self, word: str, runs: Sequence[RunFolder], hint: str | None = None) -> None:
        """Hold these runs, oldest first; without a hint of what they are, name the newest."""
        names = " ".join(run.run_id for run in runs[: -SHOWN_CANDIDATES - 1 : -1])
        message = f"{word!r} could be any of {len(runs)} runs"
        super().__init__(message, hint=hint or f"one of: {names}")
        self.runs = tuple(runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a word names: one job, or all jobs of an array in order."""

    runs: tuple[RunFolder, ...]
    array: str | None = None
    """The array id; None where it is one job."""


def run_roots(clusters: Iterable[ClusterSpec]) -> tuple[Path, ...]:
    """Return every folder in which these clusters keep their runs, each once."""
    paths = (runfolder.place_of(cluster) for cluster in clusters)
    return tuple(dict.fromkeys(paths))


def list_runs(roots: Iterable[Path]) -> list[RunFolder]:
    """Return every run of this user below `roots`, oldest first."""
    return _runs_below(roots)[0]


def runs_of_others(roots: Iterable[Path]) -> list[RunFolder]:
    """Return what other users have below `roots` that is named as runs are, oldest first."""
    return _runs_below(roots)[1]


def _runs_below(roots: Iterable[Path]) -> tuple[list[RunFolder], list[RunFolder]]:
    """Return the runs of this user, and those of others, in folders that users may share."""
    found: dict[bool, dict[RunFolder, None]] = {True: {}, False: {}}
    for root in roots:
        try:
            with os.scandir(root) as entries:
                named = [entry for entry in entries if runfolder.submitted_when(entry.name)]
            for entry in named:
                own = entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                # A link to a run may have any name; whose it is, the folder itself tells.
                linked = own and entry.is_symlink()
                path = Path(entry.path).resolve() if linked else Path(entry.path)
                if path.is_dir() and (linked or not entry.is_symlink()):
                    found[own and path.stat().st_uid == os.geteuid()][RunFolder(path)] = None
        except OSError:
            continue
    return sorted(found[True], key=_moment), sorted(found[False], key=_moment)


def _moment(run: RunFolder) -> tuple[str, int]:
    """Return when a run was submitted: to the second by its name, and finer by its plan."""
    try:
        finer = run.plan.lstat().st_mtime_ns  # written once, before anything is launched
    except OSError:
        finer = 0
    return runfolder.submitted_when(run.run_id), finer


def find_runs(word: str, roots: Sequence[Path]) -> Named:
    """Return the runs that `word` names: all jobs of an array in order, or the one of `find_run`.

    `latest` is the whole array, where the newest job is one of an array, and so is a name that
    only the jobs of one array have.

    Raises:
        UserError: there is none, or several that are not one array.
    """
    match = ARRAY_ID.fullmatch(word)
    array = match["array"] if match is not None and match["index"] is None else None
    if array is None:
        try:
            run = find_run(word, roots)
        except SeveralRunsError as error:
            array = _array_of(error.runs)
            if array is None:
                raise
        else:
            array = _array_of([run]) if word == LATEST else None
            if array is None:
                return Named(runs=(run,))
    return Named(runs=tuple(_of_array(array, roots).values()), array=array)


def _array_of(runs: Sequence[RunFolder]) -> str | None:
    """Return the array of which all of these runs are; None where they are not of one."""
    submissions = map(read_submission, runs)
    arrays = {submission.array if submission else None for submission in submissions}
    return arrays.pop() if len(arrays) == 1 else None


def find_run(word: str, roots: Sequence[Path]) -> RunFolder:
    """Return the run that `word` names.

    It is a folder, a job id, a run name or its beginning, `latest`, or `array-XXXXXX/INDEX`, also
    by the array's name, `sweep/INDEX`. Runs of other users are only looked at where none of this
    user's is meant.

    Raises:
        UserError: there is none, or several.
    """
    if not word:
        raise UserError(
            "an empty word names no job",
            hint="`clusterkit status` lists them; was a variable of the shell not set?",
        )
    match = ARRAY_ID.fullmatch(word)
    if match is not None:
        return _element(match["array"], match["index"], roots)
    name, _, index = word.rpartition("/")
    path = _folder_named(word)
    of_array = bool(name) and "/" not in name and index.isdecimal()
    if path is not None and of_array and not path.exists():
        with suppress(NoSuchJobError, SeveralRunsError):
            if (array := find_runs(name, roots).array) is not None:
                return _element(array, index, roots)
    if path is not None:
        return _at(path)
    runs, others = _runs_below(roots)
    if word == LATEST:
        # A folder without a submission belongs to one that is just being made.
        submitted = [run for run in reversed(runs) if _submitted(run)]
        # Who says `latest` means the job that runs, and not a later one that was refused.
        newest = next((run for run in submitted if not _refused(run)), None)
        if submitted:
            return newest or submitted[0]
    found = _called(word, runs) or _called(word, others)
    if not found:
        raise _unknown(word, runs, roots)
    if len(found) > 1:
        raise SeveralRunsError(word, found)
    return found[0]


def _folder_named(word: str) -> Path | None:
    """Return the folder that a word names; None where it is not a path."""
    try:
        path = Path(word).expanduser()
        if "/" in word or path.is_dir():
            # A link to a run folder may have any name; the run id is that of the folder itself.
            return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # no name of a file; a loop; no such home
        raise UserError(f"{word[:200]!r} cannot be looked for: {error}") from error
    return None


def _called(word: str, runs: Sequence[RunFolder]) -> list[RunFolder]:
    """Return those of these runs that go by a word, by the best of the ways to name a run."""
    exact = [run for run in runs if word in {run.run_id, f"local-{run.key}", f"ssh-{run.key}"}]
    return (
        exact
        or _by_job_id(word, runs)
        or [run for run in runs if word == run.key]
        or [run for run in runs if word == _name_of(run)]
        or [run for run in runs if run.run_id.startswith(word)]
    )


def _name_of(run: RunFolder) -> str:
    """Return the name of a job without the time and the key behind it."""
    return run.run_id.rsplit("-", 3)[0]


def begins_name(word: str, run: RunFolder) -> bool:
    """Tell whether a word that stands for a run is no more than the beginning of its name."""
    begins = run.run_id.startswith(word) and len(word) < len(_name_of(run))
    return begins and word not in {LATEST, job_id_in(run)} and not Path(word).is_dir()


def _of_array(array: str, roots: Sequence[Path]) -> dict[int, RunFolder]:
    """Return the runs of an array by their numbers.

    Raises:
        UserError: there is no such array.
    """
    runs = list_runs(roots)
    known = [(run, read_submission(run)) for run in runs]
    found = {
        submission.index: run
        for run, submission in known
        if submission is not None and submission.array == array and submission.index is not None
    }
    if not found:
        arrays = {s.array for _, s in known if s is not None and s.array}
        raise UserError(
            f"no array {array!r}",
            hint=did_you_mean(array, arrays) or "`clusterkit status` lists the jobs there are",
        )
    return dict(sorted(found.items()))


def _element(array: str, index: str | None, roots: Sequence[Path]) -> RunFolder:
    runs = _of_array(array, roots)
    if index is not None and int(index) in runs:
        return runs[int(index)]
    numbers = fold_numbers(runs)
    if index is None:
        raise UserError(
            f"{array} is an array of {len(runs)} jobs: say which one",
            hint=f"{array}/{next(iter(runs))}; there are {numbers}",
        )
    raise UserError(f"no job {index} in {array}", hint=f"there are {numbers}")


def job_id_in(run: RunFolder) -> str | None:
    """Return the job id that stands in a run folder; one small file is read."""
    return text_of(files.read_json(run.submission) or {}, "job_id") or None


def _by_job_id(word: str, runs: Sequence[RunFolder]) -> list[RunFolder]:
    """Return the newest run of this job id: schedulers use their ids again, years later."""
    if not word.isdigit():
        return []
    return next(([run] for run in reversed(runs) if job_id_in(run) == word), [])


def _refused(run: RunFolder) -> bool:
    """Tell whether the job was never accepted: it is over, and has no job id."""
    state = files.read_json(run.state)
    return state is not None and state.get("job_id") is None


def _submitted(run: RunFolder) -> bool:
    return run.submission.exists() or run.state.exists()


def _at(path: Path) -> RunFolder:
    run = RunFolder(path)
    if _submitted(run):
        return run
    raise UserError(
        f"{path} is not a run folder" if path.is_dir() else f"no such folder: {path}",
        hint="`clusterkit status` lists the runs there are",
    )


def _unknown(word: str, runs: Sequence[RunFolder], roots: Sequence[Path]) -> NoSuchJobError:
    if not runs:
        where = ", ".join(str(root) for root in roots)
        return NoSuchJobError(
            f"no job {word!r}: there are no runs in {where}",
            hint="of a job whose runs are kept elsewhere, name the run folder",
        )
    # Of a run such as lr-20261130-081642-667cf1 people know `lr`.
    known = [LATEST, *(name for run in runs for name in (run.run_id, _name_of(run)))]
    ids = [job_id for run in runs if (job_id := job_id_in(run))]
    return NoSuchJobError(
        f"no job {word!r}",
        hint=did_you_mean(word, known)
        or next((f"did you mean {one!r}?" for one in ids if _one_typo(word, one)), None)
        or "\n  ".join((_ELSEWHERE, *map(str, roots))),
    )


def _one_typo(word: str, job_id: str) -> bool:
    """Tell whether one character is missing, added or wrong: other ids are other people's jobs.

    Of a short number any other one is near.
    """
    if abs(len(word) - len(job_id)) > 1 or not word.isdigit() or len(word) < _LONG_ID:
        return False
    pairs = enumerate(zip(word, job_id, strict=False))
    same = next((k for k, (one, other) in pairs if one != other), min(len(word), len(job_id)))
    rest, of_id = word[same:], job_id[same:]
    return rest[1:] == of_id[1:] or rest[1:] == of_id or rest == of_id[1:]
