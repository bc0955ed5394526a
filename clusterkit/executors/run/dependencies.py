"""How jobs hang together: a job that runs after others, and the jobs of one array. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from clusterkit.core.bounds import Folder, JobName
from clusterkit.core.errors import UserError
from clusterkit.core.model import JobState
from clusterkit.core.text import some_of

ARRAY_ID = re.compile(r"(?P<array>array-[0-9a-f]{6})(?:/(?P<index>\d+))?")
"""What stands for an array, or for one of its jobs."""

_SHOWN = 3


class Condition(StrEnum):
    """How a job has to end before another may start."""

    OK = "ok"
    ANY = "any"
    FAIL = "fail"


_WANTED = {Condition.OK: "success", Condition.ANY: "end", Condition.FAIL: "failure"}
_HOW = {Condition.OK: "succeeded", Condition.ANY: "ended", Condition.FAIL: "failed"}
_SLURM = {Condition.OK: "afterok", Condition.ANY: "afterany", Condition.FAIL: "afternotok"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """One job that has to end first."""

    run_dir: Folder
    """Its run folder."""
    job_id: JobName
    ending: Condition

    def is_met(self, state: JobState) -> bool | None:
        """Tell whether that state lets the job start; None as long as it is not the last one."""
        if not state.final:
            return None
        return self.ending is Condition.ANY or (state is JobState.SUCCEEDED) == (
            self.ending is Condition.OK
        )

    def why_never(self, state: JobState) -> str:
        """Return why the job cannot start any more, now that the other has ended like this."""
        how = {JobState.CANCELLED: "was cancelled", JobState.PREEMPTED: "was preempted"}
        how |= {JobState.TIMEOUT: "reached its time limit"}
        return (
            f"{self.job_id} {how.get(state, state.value)}, "
            f"and it was to run after its {_WANTED[self.ending]}"
        )

    def explains(self, reason: str) -> bool:
        """Tell whether this is why a job with that reason never started."""
        return any(reason == self.why_never(state) for state in JobState if state.final)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What a job has to do with others."""

    array: str | None = None
    index: int | None = None
    """Which job of its array it is, from 0."""
    values: Mapping[str, str] = field(default_factory=dict)
    """The values of its array that it got, by their keys."""
    after: tuple[Dependency, ...] = ()


def parse_after(word: str) -> tuple[str, Condition]:
    """Read `JOB[:ok|any|fail]`.

    Raises:
        UserError: there is no such ending, or no job.
    """
    job, colon, ending = word.rpartition(":")
    if not colon or "/" in ending:  # a run folder may have any name
        job, ending = word, Condition.OK.value
    if ending not in set(Condition):
        raise UserError(
            f"--after {word}: {ending!r} is none of the ways in which a job ends",
            hint=f"--after {job}:ok, {job}:fail or {job}:any",
            key="after",
        )
    if not job:
        raise UserError(f"--after {word}: no job", hint="--after JOB, or --after JOB:any")
    return job, Condition(ending)


def why_never(after: Iterable[Dependency], states: Mapping[str, JobState]) -> str | None:
    """Return why a job can never start, by the states of the jobs of these run folders; or None."""
    for condition in after:
        state = states.get(condition.run_dir)
        if state is not None and condition.is_met(state) is False:
            return condition.why_never(state)
    return None


def waiting_for(after: Sequence[Dependency]) -> str:
    """Return what a job waits for: `after 17, 18 and 4 more have ended`, `after 17:ok, 18:fail`."""
    if len({one.ending for one in after}) == 1:
        names = list(dict.fromkeys(one.job_id for one in after))
        how = f" {'has' if len(names) == 1 else 'have'} {_HOW[after[0].ending]}"
    else:
        names = list(dict.fromkeys(f"{one.job_id}:{one.ending.value}" for one in after))
        how = ""
    most = _SHOWN if len(names) <= _SHOWN else _SHOWN - 1
    return f"after {some_of(names, most)}{how}"


def sbatch_dependency(after: Iterable[Dependency]) -> Mapping[str, str]:
    """Return the options of sbatch(1) by which Slurm keeps these conditions.

    `kill-on-invalid-dep` ends a job whose conditions can never hold; without it some sites let it
    wait for ever. Slurm takes a job that it does not know for one that has ended as it should, so
    jobs that are over must not be among them.
    """
    ids: dict[str, list[str]] = {}
    for condition in after:
        ids.setdefault(_SLURM[condition.ending], []).append(condition.job_id)
    if not ids:
        return {}
    text = ",".join(":".join((kind, *dict.fromkeys(jobs))) for kind, jobs in ids.items())
    return {"dependency": text, "kill-on-invalid-dep": "yes"}
