"""What is done with every plan, of one job or of an array: check it, and hand it over."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterkit.config.load import load_settings
from clusterkit.core import files
from clusterkit.core.commands import run_command
from clusterkit.core.data import read_program
from clusterkit.core.errors import UserError, did_you_mean
from clusterkit.core.model import (
    ClusterSpec,
    ContainerRuntime,
    LaunchPlan,
    RenderedFile,
    ScriptKind,
)
from clusterkit.core.shell import Secret
from clusterkit.executors import submit_plan
from clusterkit.executors.base import Show, scrubbed_environment, untold
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.dependencies import Dependencies, Dependency, sbatch_dependency
from clusterkit.jobs.submit.snapshot import take
from clusterkit.launch.frameworks import load_framework
from clusterkit.launch.frameworks.base import mpirun_names
from clusterkit.launch.render import render

if TYPE_CHECKING:
    from clusterkit.executors.run.runfolder import RunFolder, Submission
    from clusterkit.jobs.submit.preflight import Passed

_NOT_FOR_SLURM = re.compile(r"\\|%\d|%%%")
"""What no release of Slurm can be told in a file name (sbatch(1), "filename pattern"; slurmstepd's
fname.c): a backslash ends the expansion of job ids, and `%%` becomes `%` but for these."""
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_NOT_FOR_SUBMITIT = re.compile(r"%[jt]")
"""submitit writes job and task there (`JobPaths`), and so into other folders."""


def require_runnable(plan: LaunchPlan) -> None:
    """Refuse a job whose run folder cannot be named, or whose script or mpirun is missing.

    Raises:
        UserError: that is so.
    """
    _require_plain_name(plan.cluster)
    if plan.container is not None:
        return  # an image may have a script that this machine has not
    if plan.cluster.kind.shares_machine and (names := mpirun_names(plan.command)):
        _require_mpirun(plan, names)
    # Without a copy of this folder, it is the nodes that have to have the script.
    if not plan.cluster.kind.lists_hosts or plan.cluster.shared_filesystem or plan.sync:
        if plan.script_kind.is_file:
            _require_script(plan.script, Path(plan.workdir))
        elif plan.script_kind is ScriptKind.MODULE:
            _require_module(plan.script, Path(plan.workdir))


def _require_mpirun(plan: LaunchPlan, names: Sequence[str]) -> None:
    """Refuse what mpirun starts, where this machine has none and the cluster loads none."""
    cluster = plan.cluster
    if cluster.setup or cluster.modules or "PATH" in plan.env:
        return
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if not any(shutil.which(name, path=path) for name in names):
        raise UserError(
            f"{plan.framework} starts ranks by mpirun, which this machine does not have",
            hint="apt install openmpi-bin; or load it: `setup:` or `modules:` of the cluster",
        )


def conditions_of(texts: Sequence[str], plan: LaunchPlan) -> tuple[Dependency, ...]:
    """Return what the job has to wait for, by the words of `--after`.

    Raises:
        UserError: it cannot be waited for, or the plan has a dependency of its own.
    """
    if not texts:
        return ()
    from clusterkit.jobs.dependencies import conditions  # noqa: PLC0415 - few jobs wait for others
    from clusterkit.jobs.find import run_roots  # noqa: PLC0415

    roots = run_roots(load_settings().clusters.values())
    return conditions(texts, roots, plan.cluster.kind)


def tied(plan: LaunchPlan, after: Iterable[Dependency]) -> LaunchPlan:
    """Return the plan with the dependencies that Slurm gets.

    Raises:
        UserError: the user has given Slurm a dependency of his own.
    """
    options = sbatch_dependency(after)
    if not plan.cluster.kind.scheduled or not options:
        return plan
    if "dependency" in plan.directives:
        raise UserError(
            "sbatch.dependency cannot be given together with --after, or with a limited array",
            hint="--after JOB[:ok|any|fail], once for each",
        )
    skipped = plan.cluster.skip_directives
    kept = {key: text for key, text in options.items() if key not in skipped}
    return dataclasses.replace(plan, directives={**plan.directives, **kept})


def put_back_until_it_runs(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan of a job that Slurm may put back where a node does not boot.

    Any user may take that back of his own running job (`_update_job` of Slurm's job_mgr.c, at least
    18.08 to 26.05), and the script begins by that. One that may be put back anyway stays as it is.
    """
    cluster, given = plan.cluster, plan.directives
    if "no-requeue" not in given or "no-requeue" in cluster.extra_directives:
        return plan
    if "requeue" in cluster.skip_directives:
        return plan
    components = tuple(
        dataclasses.replace(one, directives=_putting_back(one.directives))
        for one in plan.components
    )
    return dataclasses.replace(
        plan, directives=_putting_back(given), components=components, boots=True
    )


def _putting_back(given: Mapping[str, str | None]) -> dict[str, str | None]:
    return {"requeue" if key == "no-requeue" else key: text for key, text in given.items()}


def hand_over(
    plan: LaunchPlan,
    passed: Passed,
    dependencies: Dependencies,
    *,
    command_line: Sequence[str],
    note: Callable[[str], None],
    show: Show = untold,
    begun: Callable[[RunFolder], None] | None = None,
) -> tuple[RunFolder, Submission]:
    """Write the run folder and start the job, or leave it to wait for others.

    `command_line` is what the user typed, if that is how he asked; `note` hears what an executor
    has to say, `show` how far it is, and `begun` of the run folder before anything is started.

    Raises:
        UserError, RemoteError: as `submit_plan`.
    """
    plan = tied(plan, dependencies.after)
    if passed.boots:
        plan = put_back_until_it_runs(plan)
    rendered = render(plan)
    run = runfolder.create(plan.cluster, plan.name)
    if begun is not None:
        begun(run)
    if passed.snapshot is not None:
        plan = take(passed.snapshot, plan, run)
        rendered = render(plan)
    submission, launched = submit_plan(
        plan,
        (*rendered, *_as_files(passed.documents)),
        run,
        secrets={n: Secret(os.environ[n]) for n in plan.secrets if n in os.environ},
        command_line=command_line,
        dependencies=dependencies,
        show=show,
    )
    for message in launched.messages:
        note(message)
    return run, submission


def _as_files(documents: Mapping[str, Mapping[str, Any]]) -> Iterator[RenderedFile]:
    for name, document in documents.items():
        text = files.json_text({"schema": runfolder.SCHEMA, **files.plain(document)})
        # Bytes of names that are no UTF-8 stand as escapes, as `files.write_json` has them.
        yield RenderedFile(name=name, text=text.encode(errors="backslashreplace").decode())


def _require_plain_name(cluster: ClusterSpec) -> None:
    folder = str(runfolder.place_of(cluster))
    slurms = _NOT_FOR_SLURM.search(folder) if cluster.kind.scheduled else None
    wrong = slurms or _NOT_FOR_SUBMITIT.search(folder)
    if wrong is not None:
        raise UserError(
            f"no job can have its files in {folder}: {'Slurm' if slurms else 'submitit'} takes "
            f"{wrong[0]} in the name of a file for something else, and has no way to write it",
            hint="set `run_dir` to a folder without it",
            key="cluster",
        )


def _require_script(script: str, workdir: Path) -> None:
    path = Path(script) if workdir == Path.cwd() else workdir / script
    if path.is_file():
        return
    if path.is_dir():
        raise UserError(
            f"{script} is a folder", hint="name the training script in it", key="script"
        )
    beside = path.parent.glob("*.py") if path.parent.is_dir() else ()
    close = difflib.get_close_matches(path.name, [other.name for other in beside], n=1)
    hint = f"did you mean {path.parent / close[0]}?" if close else f"looked in {Path.cwd()}"
    if any(sign in script for sign in (" && ", " | ", "; ", " > ")):
        hint = f"a line of shell: clusterkit submit ... -- bash -c {shlex.quote(script)}"
    elif not close and _DOTTED.fullmatch(script) and (workdir / script.partition(".")[0]).is_dir():
        hint = f"a module: clusterkit submit ... -m {script} [ARGS]"
    elif path.suffix != ".py":
        hint += (
            f"\n  a program that the nodes alone have: clusterkit submit ... env {script} [ARGS]"
        )
    raise UserError(f"script {script} does not exist", hint=hint, key="script")


def _require_module(name: str, workdir: Path) -> None:
    """Refuse a module that its package, where that is here, does not have."""
    top, *_ = parts = name.split(".")
    path = workdir.joinpath(*parts)
    if not (workdir / top / "__init__.py").is_file() or path.with_suffix(".py").is_file():
        return
    if (path / "__main__.py").is_file():
        return
    raise UserError(
        f"no module {name} in the package {top}",
        hint=did_you_mean(path.name, [other.stem for other in path.parent.glob("*.py")])
        or f"looked for {path.relative_to(workdir)}.py, and for a __main__.py in that package",
        key="script",
    )


_ENGINES = {
    ContainerRuntime.DOCKER: ("docker",),
    ContainerRuntime.COMPOSE: ("docker",),
    ContainerRuntime.APPTAINER: ("apptainer", "singularity"),
    ContainerRuntime.ENROOT: ("enroot",),
}
"""What starts an image on a machine; pyxis is a part of srun."""


def require_engine(plan: LaunchPlan) -> None:
    """Refuse a job of this machine in a container for which there is no engine, or none answers.

    Nothing is said where modules and setup lines may put one on PATH.

    Raises:
        UserError: there is none on PATH, or the daemon of Docker cannot be reached.
    """
    cluster = plan.cluster
    engines = _ENGINES.get(plan.container.runtime, ()) if plan.container is not None else ()
    if not engines or not cluster.kind.shares_machine or cluster.modules or cluster.setup:
        return
    variables = {**os.environ, **plan.env, "LC_ALL": "C"}
    path = variables.get("PATH")
    found = next(filter(None, (shutil.which(engine, path=path) for engine in engines)), None)
    if found is None:
        raise UserError(
            f"there is no {engines[0]} on this machine to run the image with",
            hint="`clusterkit doctor` says which there are: --container NAME",
        )
    if engines[0] != "docker":
        return
    command = (found, "version", "--format={{.Server.Version}}")
    answer = run_command(command, environment=variables, timeout_s=_TIMEOUT_S)
    if not answer.ok and "daemon" in answer.complaint:
        barred = "permission denied" in answer.complaint.lower()
        raise UserError(
            f"docker: {answer.complaint}",
            hint="sudo usermod -aG docker $USER, and log in anew; or rootless Docker; or apptainer"
            if barred
            else "sudo systemctl start docker; or set DOCKER_HOST where it listens elsewhere",
        )


_TIMEOUT_S = 20
"""A Python on a slow file system; what takes longer is left to the job."""


def require_package(plan: LaunchPlan) -> None:
    """Refuse a job of this machine whose Python lacks the package of its framework.

    Nothing is said of a Python that cannot be known from here: one in an image, or one that
    modules and setup lines may put on PATH.

    Raises:
        UserError: there is no such Python, or it lacks the package.
    """
    cluster = plan.cluster
    if not cluster.kind.shares_machine or plan.container or cluster.modules or cluster.setup:
        return
    framework = load_framework(plan.framework)
    environment = {**scrubbed_environment(plan.secrets), **plan.env}
    python = cluster.python or "python3"
    path = shutil.which(python, path=environment.get("PATH"))
    if path is None:
        raise UserError(
            f"there is no {python} on this machine to run the job with",
            hint=f"set `python:` of cluster {cluster.name} to the one of your training environment",
        )
    package = framework.package_name
    if package is None:
        return
    answer = run_command(
        [path, "-c", read_program("programs/machine/has_package.py"), package],
        environment=environment,
        folder=plan.workdir,
        timeout_s=_TIMEOUT_S,
    )
    if not answer.ok or answer.output.strip() != "missing":
        return  # the job itself will say what is wrong with it
    from clusterkit.images.packages import remedies  # noqa: PLC0415 - reads the catalogue

    ways = (*remedies(framework, path), f"or set `python:` of cluster {cluster.name} to another")
    raise UserError(
        f"framework {framework.name} needs the package {package}, which {path} does not have",
        hint="\n  ".join(ways),
    )
