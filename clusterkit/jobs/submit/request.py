"""What a user asks for, by flags or arguments and by a job file: to plans on a cluster."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterkit.config import load_settings
from clusterkit.core.errors import Position, Problem, UserError
from clusterkit.core.model import ClusterSpec, JobSpec, LaunchPlan
from clusterkit.jobs.submit.spec import job_spec
from clusterkit.launch.array.expand import jobs_of
from clusterkit.launch.array.spec import FORMS, choose
from clusterkit.launch.plan import make_plan

if TYPE_CHECKING:
    from clusterkit.launch.array.spec import Sweep
    from clusterkit.launch.jobfile import GivenJob


LAYOUT = ("tp", "cp", "ep", "pp", "topology")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What flags and job file ask for, and which of the two said what."""

    verb: str
    flags: Mapping[str, Any]
    """What was said apart from the file, and beats it."""
    file: GivenJob | None
    warn: Callable[[str], None]
    said_by: str = "flag"
    """What `flags` are: flags, or arguments of a function."""

    def get(self, key: str) -> Any:
        """Return the value of `key`: the flag's, else the job file's, else None."""
        return self.flags.get(key, self.from_file.get(key))

    @property
    def from_file(self) -> Mapping[str, Any]:
        """The values of the job file."""
        return self.file.values if self.file is not None else {}

    def plan(self, *, also_exclude: tuple[str, ...] = ()) -> LaunchPlan:
        """Return the plan of what is asked for, without the nodes `also_exclude` either.

        Raises:
            UserError: anything in it is wrong; all problems at once that can be known at once.
        """
        with self.placing():
            job, cluster = self._job_and_cluster()
            job = dataclasses.replace(job, exclude=(*job.exclude, *also_exclude))
            return self._laid_out(job, cluster, warn=self.warn)

    def sweep(self) -> Sweep | None:
        """Return the sweep of `--array`; None where one job is asked for.

        Raises:
            UserError: its file or its text is wrong, or it is limited and not there.
        """
        with self.placing():
            flag_decides = "at_once" in self.flags and "array" not in self.flags
            return _sweep_of({**self.from_file, **self.flags}, flag_decides=flag_decides)

    def plans(self, sweep: Sweep, *, also_exclude: tuple[str, ...] = ()) -> tuple[LaunchPlan, ...]:
        """Return the plan of each job of the array, in order.

        Raises:
            UserError: as for `plan`, or a value has no place.
        """
        with self.placing():
            job, cluster = self._job_and_cluster()
            job = dataclasses.replace(job, exclude=(*job.exclude, *also_exclude))
            first, *others = jobs_of(sweep, job)
            return (
                self._laid_out(first, cluster, warn=self.warn),
                *(self._laid_out(one, cluster, warn=lambda _: None) for one in others),
            )

    def _laid_out(
        self, job: JobSpec, cluster: ClusterSpec, *, warn: Callable[[str], None]
    ) -> LaunchPlan:
        workdir = str(Path.cwd())
        sizes = {name: value for name in LAYOUT if (value := self.get(name)) is not None}
        if not sizes:
            return make_plan(job, cluster, workdir=workdir)
        from clusterkit.jobs.submit.rank_layout import laid_out  # noqa: PLC0415 - few jobs need it

        planned = partial(make_plan, workdir=workdir)
        return laid_out(job, cluster, sizes, planned=planned, warn=warn)

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Say of each problem with a value of the job where that value was given."""
        try:
            yield
        except UserError as error:
            problems = [self._placed(problem) for problem in error.problems]
            raise UserError(problems=problems) from error

    def _placed(self, problem: Problem) -> Problem:
        if problem.key is None or problem.position is not None:
            return problem
        top = problem.key.partition(".")[0]
        if self.file is not None and (top in {"env", "set"} or top not in self.flags):
            position = self.file.position(problem.key)
            if position is not None:
                return dataclasses.replace(problem, position=position)
        position = None
        if top in self.flags and top != "script" and not problem.message.startswith("--"):
            position = self._position_of(top)
        return dataclasses.replace(problem, key=None, position=position)

    def _position_of(self, key: str) -> Position:
        variable = f"CLUSTERKIT_{key.upper()}"
        if os.environ.get(variable) == self.flags[key]:
            return Position(source=f"environment variable {variable}")
        if self.said_by != "flag":
            return Position(source=f"{self.said_by} {key}")
        return Position(source=f"flag --{key.replace('_', '-')}")

    def _job_and_cluster(self) -> tuple[JobSpec, ClusterSpec]:
        settings = load_settings()
        problems: list[Problem] = []
        cluster = None
        try:
            cluster = settings.cluster(self.get("cluster"))
        except UserError as error:
            problems += [dataclasses.replace(p, key="cluster") for p in error.problems]
        job = job_spec({**self.from_file, **self.flags}, self.from_file, self.verb, problems)
        if cluster is None or job is None:
            raise UserError(problems=problems)
        for problem in settings.warnings_of(cluster.name):
            self.warn(str(problem))
        return job, cluster


def read_request(
    given: Mapping[str, Any],
    *,
    verb: str,
    job: Path | None,
    warn: Callable[[str], None],
    said_by: str = "flag",
) -> JobRequest:
    """Return what is given for `verb` as flags, or said by something else, and in the file `job`.

    Raises:
        UserError: the job file has errors.
    """
    file = None
    if job is not None:
        from clusterkit.launch.jobfile import load_job_file  # noqa: PLC0415 - loads pydantic

        file = load_job_file(job)
    return JobRequest(verb=verb, flags=given, file=file, warn=warn, said_by=said_by)


def _sweep_of(values: Mapping[str, Any], *, flag_decides: bool) -> Sweep | None:
    array, at_once = values.get("array"), values.get("at_once")
    if array is None:
        for key in ("at_once", "elements"):
            if key in values:
                flag = f"--{key.replace('_', '-')}"
                raise UserError(f"{flag} is of an array, and there is none", hint=FORMS)
        return None
    if at_once is not None and at_once < 1:
        raise UserError("--at-once: at least 1 job has to run", hint="--at-once 1")
    from clusterkit.launch.array.file import read_sweep  # noqa: PLC0415 - only for arrays

    sweep = read_sweep(str(array))
    if not flag_decides and None not in (at_once, sweep.at_once) and at_once != sweep.at_once:
        raise UserError(
            f"--at-once {at_once}, and %{sweep.at_once} in the array: two limits",
            hint="give one of them",
        )
    sweep = choose(sweep, str(values["elements"])) if "elements" in values else sweep
    return dataclasses.replace(sweep, at_once=at_once or sweep.at_once)
