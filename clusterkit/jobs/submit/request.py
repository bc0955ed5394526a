"""What a user asks for, by flags or arguments and by a job file: to plans on a cluster."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterkit.config.load import load_settings
from clusterkit.core.errors import Position, Problem, UserError, choices_hint
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import (
    SYNC_LIMIT_MIB,
    ClusterSpec,
    ContainerRuntime,
    LaunchPlan,
    ScriptKind,
)
from clusterkit.core.text import some_of
from clusterkit.launch.array.expand import jobs_of
from clusterkit.launch.array.spec import FORMS, choose
from clusterkit.launch.frameworks import load_framework
from clusterkit.launch.options import Component, JobSpec, job_options
from clusterkit.launch.plan import make_plan
from clusterkit.launch.scripts.kinds import Started, recognise

if TYPE_CHECKING:
    from clusterkit.launch.array.spec import Sweep
    from clusterkit.launch.jobfile import GivenJob


_AS_GIVEN = job_options().keys() & {field.name for field in dataclasses.fields(JobSpec)}
"""Options that a job holds under their names; those that are parsed first come after them."""
_SECRET = re.compile(
    r"(?i)(?<!BOS)(?<!CLS)(?<!EOS)(?<!MASK)(?<!PAD)(?<!SEP)(?<!UNK)_TOKEN$|(?<!SORT)_KEY$"
    r"|(?P<surely>PASSWORD|PASSWD|SECRET)(?!.*_(?:FILE|PATH|DIR)$)"
)
_LAYOUT = ("tp", "cp", "ep", "pp", "topology")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What flags and job file ask for, and which of the two gave what."""

    verb: str
    flags: Mapping[str, Any]
    """What was given apart from the file, and beats it."""
    file: GivenJob | None
    warn: Callable[[str], None]
    source_kind: str = "flag"
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
        return self.plans(also_exclude=also_exclude)[0]

    def sweep(self) -> Sweep | None:
        """Return the sweep of `--array`; None where one job is asked for.

        Raises:
            UserError: its file or its text is wrong, or it is limited and not there.
        """
        with self.placing():
            if self.get("array") and self.get("component"):
                hint = "submit the jobs one by one"
                raise UserError("--component: not in an array", hint=hint, key="component")
            flag_decides = "at_once" in self.flags and "array" not in self.flags
            return _sweep_of({**self.from_file, **self.flags}, flag_decides=flag_decides)

    def plans(
        self, sweep: Sweep | None = None, *, also_exclude: tuple[str, ...] = ()
    ) -> tuple[LaunchPlan, ...]:
        """Return the plan of each job of the array, in order, or of the one job.

        Raises:
            UserError: as for `plan`, or a value has no place.
        """
        with self.placing():
            job, cluster = self._job_and_cluster()
            job = dataclasses.replace(job, exclude=(*job.exclude, *also_exclude))
            first, *others = jobs_of(sweep, job) if sweep is not None else (job,)
            return (
                self._laid_out(first, cluster, warn=self.warn),
                *(self._laid_out(one, cluster, warn=lambda _: None) for one in others),
            )

    def _laid_out(
        self, job: JobSpec, cluster: ClusterSpec, *, warn: Callable[[str], None]
    ) -> LaunchPlan:
        if job.script_kind.is_file and Path(job.script).is_absolute():
            from clusterkit.jobs.submit.snapshot import name_in_copy  # noqa: PLC0415 - as below

            asked = bool(self.get("snapshot"))
            job = dataclasses.replace(job, script=name_in_copy(job.script, asked=asked))
        planned = partial(make_plan, workdir=str(Path.cwd()))
        sizes = {name: value for name in _LAYOUT if (value := self.get(name)) is not None}
        if not sizes:
            return planned(job, cluster)
        from clusterkit.jobs.submit.rank_layout import laid_out  # noqa: PLC0415 - few jobs need it

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
        if self.source_kind != "flag":
            return Position(source=f"{self.source_kind} {key}")
        return Position(source=f"flag --{key.replace('_', '-')}")

    def _job_and_cluster(self) -> tuple[JobSpec, ClusterSpec]:
        settings = load_settings()
        problems: list[Problem] = []
        cluster = None
        try:
            cluster = settings.cluster(self.get("cluster"))
        except UserError as error:
            problems += [dataclasses.replace(p, key="cluster") for p in error.problems]
        values = {**self.from_file, **self.flags}
        by_default = settings.default_framework is not None and not values.get("framework")
        if by_default:
            values["framework"] = settings.default_framework
        job = _job_spec(values, self.from_file, self.verb, problems)
        if by_default:
            origin = settings.origin("default_framework")
            at = Position(source=origin.source, line=origin.line)
            problems = [
                dataclasses.replace(p, position=at) if p.key == "framework" else p for p in problems
            ]
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
    source_kind: str = "flag",
) -> JobRequest:
    """Return what is given for `verb`, as flags or as arguments, and in the file `job`.

    Raises:
        UserError: the job file has errors.
    """
    file = None
    if job is not None:
        from clusterkit.launch.jobfile import load_job_file  # noqa: PLC0415 - loads pydantic

        file = load_job_file(job)
    request = JobRequest(verb=verb, flags=given, file=file, warn=warn, source_kind=source_kind)
    _warn_of_secrets(request)
    return request


def _warn_of_secrets(request: JobRequest) -> None:
    """Warn of variables whose names say that their values are for nobody else."""
    env = parse_pairs("--env", request.flags.get("env", ()), [])
    values = {**request.from_file.get("env", {}), **env}
    names = [
        name
        for name, value in values.items()
        if (secret := _SECRET.search(name))
        and value
        and (secret["surely"] or not str(value).startswith(("/", "~")))
    ]
    if names:
        secrets = " ".join(f"--secret {name}" for name in names)
        request.warn(
            f"the value of {some_of(names, 3)} will stand in scripts and in the run folder;\n"
            f"  to keep it out, export it in your shell, and {secrets} in place of --env"
        )


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


def _job_spec(
    values: Mapping[str, Any], from_file: Mapping[str, Any], verb: str, problems: list[Problem]
) -> JobSpec | None:
    """Return the job, or None where `problems` holds one; what is wrong is added there."""
    started = _started(values, verb, problems)
    name = values.get("framework") or ("torchrun" if started.kind.is_python else "env")
    framework = _known_framework(name, problems)
    nodes, max_nodes = _parse_nodes(str(values.get("nodes", "1")), problems)
    slots = _parse_slots(values.get("gpus_per_node", ""), problems)
    components = _parse_components(values, problems)
    # Name by name: a flag changes one variable of the job file, not all of them.
    env, settings = (
        {**from_file.get(key, {}), **parse_pairs(f"--{key}", values.get(key, ()), problems)}
        for key in ("env", "set")
    )
    if "ps" in values and framework == "tensorflow":
        settings["tensorflow.ps"] = str(values["ps"])
    elif "ps" in values and framework:
        hint = "--framework tensorflow, or leave --ps out"
        problems.append(Problem(message=f"--ps is not for {framework}", hint=hint, key="ps"))
    sbatch, launcher = _split_settings(settings, framework, problems)
    container = _parse_container(values.get("container"), problems)
    excluded = _parse_exclude(values.get("exclude", ""), problems)
    sync = _parse_sync(values.get("sync"), problems)
    if problems:
        return None
    as_given = {name: values[name] for name in _AS_GIVEN if name in values}
    parsed: dict[str, Any] = {
        "framework": framework,
        "script": started.script,
        "script_kind": started.kind,
        "args": started.args,
        "nodes": nodes,
        "max_nodes": max_nodes,
        "gpus_per_node": slots,
        "components": components,
        "time": values.get("time") and str(values["time"]),
        "env": env,
        "secrets": tuple(values.get("secret", ())),
        "on_end": tuple(values.get("on_end", ())),
        "on_failure": tuple(values.get("on_failure", ())),
        "exclude": excluded,
        "sync": sync,
        "sync_limit_mib": values.get("sync_limit", SYNC_LIMIT_MIB),
        "sbatch_options": sbatch,
        "launcher_options": launcher,
        "container": container,
        "mounts": tuple(values.get("mount", ())),
        "deepspeed_preset": values.get("ds_preset"),
    }
    return JobSpec(**{**as_given, **parsed})


def _started(values: Mapping[str, Any], verb: str, problems: list[Problem]) -> Started:
    """Return what is to run; add what is wrong with it."""
    script = str(values.get("script") or "")
    words = (script, *map(str, values.get("args", ())))
    if not script:
        hint = f"clusterkit {verb} --nodes 2 train.py"
        problems.append(Problem(message="no training script", hint=hint))
    else:
        try:
            module = bool(values.get("module"))
            return recognise(words, module=module, framework=values.get("framework"))
        except UserError as error:
            problems += error.problems
    return Started(script, words[1:], ScriptKind.PYTHON)


def _known_framework(name: str, problems: list[Problem]) -> str:
    """Return the name of a framework that there is; else the empty text."""
    try:
        return load_framework(name).name
    except UserError as error:
        problems += [dataclasses.replace(problem, key="framework") for problem in error.problems]
        return ""


def _parse_exclude(text: str, problems: list[Problem]) -> tuple[str, ...]:
    try:
        return hostlist.expand(text, source="--exclude")
    except UserError as error:
        problems += error.problems
        return ()


def _parse_sync(text: str | None, problems: list[Problem]) -> str | None:
    """Return the folder to copy, every link resolved."""
    if text is None:
        return None
    path = Path(text).expanduser()
    if not text.strip() or not path.is_dir():
        empty = "the name is empty" if not text.strip() else None
        wrong = empty or ("is a file, not a folder" if path.is_file() else "no such folder")
        message = f"--sync {shlex.quote(text)}: {wrong}"
        problems.append(Problem(message=message, hint="--sync DIR, such as --sync .", key="sync"))
    return os.path.realpath(path)


def _parse_nodes(text: str, problems: list[Problem]) -> tuple[int, int | None]:
    match = re.fullmatch(r"(-?\d{1,18})(?::(\d{1,18}))?", text.strip())
    if match is None:
        message = f"--nodes {text[:40]!r} is not a number"
        of_mpirun = text[:1] == "p"  # -np, read as -n p
        ranks = f"--processes {text[1:] or 'N'}, which are all ranks (-np is read as --nodes p)"
        hint = ranks if of_mpirun else "--nodes 4, or --nodes 2:8"
        problems.append(Problem(message=message, hint=hint))
        return 1, None
    return int(match[1]), int(match[2]) if match[2] else None


def _parse_slots(value: Any, problems: list[Problem]) -> tuple[int, ...]:
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    try:
        return tuple(int(part) for part in parts if str(part).strip())
    except ValueError:
        message = f"--gpus-per-node {str(value)[:40]!r} is not a number"
        hint = "--gpus-per-node 8, or one number per node: --gpus-per-node 8,4"
        problems.append(Problem(message=message, hint=hint))
        return ()


def _parse_components(values: Mapping[str, Any], problems: list[Problem]) -> tuple[Component, ...]:
    if "component" not in values:
        return ()
    from clusterkit.launch.components import parse_components  # noqa: PLC0415 - loads pydantic

    if "nodes" in values:
        message = f"--nodes {values['nodes']}: the components say how many nodes there are"
        problems.append(Problem(message=message, hint="leave it out", key="nodes"))
    try:
        return parse_components(values["component"])
    except UserError as error:
        problems += error.problems
        return ()


def parse_pairs(flag: str, value: Any, problems: list[Problem]) -> dict[str, str]:
    """Return the pairs of a repeated `K=V` flag, or of a job file; add what is wrong."""
    if isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items()}
    pairs = {}
    for text in value:
        name, equals, pairs[name] = str(text).partition("=")
        if not equals:
            message = f"{flag} {text}: no `=` in it"
            problems.append(Problem(message=message, hint=f"{flag} {text}=VALUE"))
    return pairs


def _split_settings(
    settings: Mapping[str, str], framework: str, problems: list[Problem]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of sbatch, and those of the launcher."""
    sbatch: dict[str, str] = {}
    launcher: dict[str, str] = {}
    for key, value in settings.items():
        scope, dot, option = key.partition(".")
        if dot and scope == "sbatch":
            sbatch[option.replace("_", "-")] = value
        elif dot and framework in {scope, ""}:  # one that there is not is error enough
            launcher[option] = value
        else:
            name = option or key
            hint = f"--set sbatch.{name}=... or --set {framework or 'FRAMEWORK'}.{name}=..."
            if key in {field.name for field in dataclasses.fields(ClusterSpec)}:
                hint = f"`{key}: {value}` of the cluster, in clusterkit.yaml"
            message = f"--set {key}: nothing to set by that name"
            problems.append(Problem(message=message, hint=hint, key=f"set.{key}"))
    return sbatch, launcher


def _parse_container(value: str | None, problems: list[Problem]) -> ContainerRuntime | None:
    names = [runtime.value for runtime in ContainerRuntime]
    if value is None or value in names:
        return ContainerRuntime(value) if value is not None else None
    message = f"unknown container runtime {value!r}"
    problems.append(Problem(message=message, hint=choices_hint(value, names), key="container"))
    return None
