"""The flags that describe a job, the same for every verb that takes one, and their job file."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from clusterkit.errors import Problem, UserError, choices_hint

CONTEXT_SETTINGS = {"allow_interspersed_args": False}
"""Everything after SCRIPT belongs to the script."""


def _option(*names: str, help_text: str, panel: str = "Job", **more: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, show_default=False, **more)


@dataclasses.dataclass(frozen=True, slots=True)
class JobFlags:
    """What the flags said; None (or empty) where they said nothing and the job file decides."""

    script: Annotated[
        str | None, typer.Argument(help="The training script.", show_default=False)
    ] = None
    args: Annotated[list[str] | None, typer.Argument(help="Its arguments.", show_default=False)] = (
        None
    )
    cluster: Annotated[
        str | None,
        _option(
            "--cluster",
            "-c",
            help_text="Cluster of clusterkit.yaml, or local.",
            envvar="CLUSTERKIT_CLUSTER",
        ),
    ] = None
    framework: Annotated[
        str | None,
        _option(
            "--framework",
            "-f",
            help_text="What starts the processes: torchrun, deepspeed, horovod.",
            envvar="CLUSTERKIT_FRAMEWORK",
        ),
    ] = None
    nodes: Annotated[
        str | None,
        _option(
            "--nodes",
            "-n",
            help_text="Number of nodes, or MIN:MAX for an elastic job.",
            envvar="CLUSTERKIT_NODES",
        ),
    ] = None
    gpus_per_node: Annotated[
        str | None,
        _option(
            "--gpus-per-node",
            "-g",
            help_text="Slots of each node: GPUs, or CPU processes where there are none.",
        ),
    ] = None
    processes: Annotated[
        int | None, _option("--processes", help_text="Ranks in all, where fewer than the slots.")
    ] = None
    time: Annotated[str | None, _option("--time", "-t", help_text="Time limit, as Slurm's.")] = None
    name: Annotated[str | None, _option("--name", help_text="Name of the job.")] = None
    env: Annotated[
        list[str] | None,
        _option("--env", "-e", help_text="Variable K=V for every rank; repeatable."),
    ] = None
    secret: Annotated[
        list[str] | None,
        _option("--secret", help_text="Variable passed on but never written down; repeatable."),
    ] = None
    exclude: Annotated[
        str | None, _option("--exclude", help_text="Hostlist of nodes not to use.")
    ] = None
    set_: Annotated[
        list[str] | None,
        _option(
            "--set", help_text="sbatch.KEY=VALUE or FRAMEWORK.KEY=VALUE; repeatable.", metavar="K=V"
        ),
    ] = None
    ds_preset: Annotated[
        str | None,
        _option(
            "--ds-preset",
            help_text="DeepSpeed configuration: zero1, zero2, zero3, zero3-offload, zero3-nvme.",
        ),
    ] = None
    requeue: Annotated[
        int | None,
        _option("--requeue", help_text="Let Slurm start the job again after it lost a node."),
    ] = None
    image: Annotated[
        str | None, _option("--image", help_text="Image to run in.", panel="Container")
    ] = None
    container: Annotated[
        str | None,
        _option("--container", help_text="docker, apptainer, enroot or pyxis.", panel="Container"),
    ] = None
    job: Annotated[
        Path | None,
        _option("--job", help_text="YAML file with these flags as keys; flags win over it."),
    ] = None


def takes_job_flags(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb(flags, **own)` the parameters of `JobFlags` beside its own."""
    shared = inspect.signature(JobFlags, eval_str=True).parameters
    own = dict(list(inspect.signature(verb, eval_str=True).parameters.items())[1:])

    def command(**values: Any) -> None:
        flags = JobFlags(**{name: values.pop(name) for name in shared})
        verb(flags, **values)

    parameters = [*shared.values(), *own.values()]
    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    )
    return command


def job_and_cluster(flags: JobFlags) -> tuple[Any, Any]:
    """Return the `JobSpec` and `ClusterSpec` that flags, job file and configuration describe.

    Raises:
        UserError: anything in them is wrong; all problems of one source at once.
    """
    from clusterkit.config import load_job_file, load_settings  # noqa: PLC0415

    from_file: Mapping[str, Any] = load_job_file(flags.job) if flags.job else {}
    given = {
        field.name: value
        for field in dataclasses.fields(flags)
        if (value := getattr(flags, field.name)) not in (None, [])
    }
    if "set_" in given:
        given["set"] = given.pop("set_")
    cluster = load_settings().cluster(given.get("cluster", from_file.get("cluster")))
    return _job_spec({**from_file, **given}, from_file), cluster


def _job_spec(values: Mapping[str, Any], from_file: Mapping[str, Any]) -> Any:
    from clusterkit import hostlist  # noqa: PLC0415
    from clusterkit.model import JobSpec  # noqa: PLC0415

    problems: list[Problem] = []
    if not values.get("script"):
        problems.append(
            Problem(
                message="no training script",
                hint="clusterkit submit --framework torchrun --nodes 2 train.py",
            )
        )
    if not values.get("framework"):
        problems.append(
            Problem(
                message="no framework",
                hint="--framework torchrun, deepspeed or horovod (clusterkit explain frameworks)",
            )
        )
    nodes, max_nodes = _parse_nodes(str(values.get("nodes", "1")), problems)
    slots = _parse_slots(values.get("gpus_per_node", ""), problems)
    # Name by name: a flag changes one variable of the job file, not all of them.
    env, settings = (
        {**from_file.get(key, {}), **_parse_pairs(f"--{key}", values.get(key, ()), problems)}
        for key in ("env", "set")
    )
    sbatch, launcher = _split_settings(settings, values.get("framework") or "", problems)
    container = _parse_container(values.get("container"), problems)
    if problems:
        raise UserError(problems=problems)
    exclude = values.get("exclude", "")
    return JobSpec(
        framework=values["framework"],
        script=values["script"],
        args=tuple(str(arg) for arg in values.get("args", ())),
        name=values.get("name"),
        nodes=nodes,
        max_nodes=max_nodes,
        gpus_per_node=slots,
        processes=values.get("processes"),
        time=values.get("time") and str(values["time"]),
        env=env,
        secrets=tuple(values.get("secret", ())),
        exclude=tuple(hostlist.expand(exclude)) if isinstance(exclude, str) else tuple(exclude),
        sbatch_options=sbatch,
        launcher_options=launcher,
        image=values.get("image"),
        container=container,
        requeue=values.get("requeue", 0),
        deepspeed_preset=values.get("ds_preset"),
    )


def _parse_nodes(text: str, problems: list[Problem]) -> tuple[int, int | None]:
    match = re.fullmatch(r"(-?\d+)(?::(\d+))?", text.strip())
    if match is None:
        problems.append(
            Problem(message=f"--nodes {text!r} is no number", hint="--nodes 4, or --nodes 2:8")
        )
        return 1, None
    return int(match[1]), int(match[2]) if match[2] else None


def _parse_slots(value: Any, problems: list[Problem]) -> tuple[int, ...]:
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    try:
        return tuple(int(part) for part in parts if str(part).strip())
    except ValueError:
        problems.append(
            Problem(
                message=f"--gpus-per-node {value!r} is no number",
                hint="--gpus-per-node 8, or one number a node: --gpus-per-node 8,4",
            )
        )
        return ()


def _parse_pairs(flag: str, value: Any, problems: list[Problem]) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items()}
    pairs = {}
    for text in value:
        name, equals, item = str(text).partition("=")
        if not equals:
            problems.append(
                Problem(message=f"{flag} {text}: no `=` in it", hint=f"{flag} {text}=VALUE")
            )
        pairs[name] = item
    return pairs


def _split_settings(
    settings: Mapping[str, str], framework: str, problems: list[Problem]
) -> tuple[dict[str, str], dict[str, str]]:
    sbatch: dict[str, str] = {}
    launcher: dict[str, str] = {}
    for key, value in settings.items():
        scope, dot, option = key.partition(".")
        if dot and scope == "sbatch":
            sbatch[option.replace("_", "-")] = value
        elif dot and scope == framework:
            launcher[option] = value
        else:
            problems.append(
                Problem(
                    message=f"--set {key}: nothing to set by that name",
                    hint=f"--set sbatch.{option or key}=... or --set "
                    f"{framework or 'FRAMEWORK'}.{option or key}=...",
                )
            )
    return sbatch, launcher


def _parse_container(value: str | None, problems: list[Problem]) -> Any:
    from clusterkit.model import ContainerRuntime  # noqa: PLC0415

    if value is None:
        return None
    names = [runtime.value for runtime in ContainerRuntime]
    if value not in names:
        problems.append(
            Problem(message=f"unknown container runtime {value!r}", hint=choices_hint(value, names))
        )
        return None
    return ContainerRuntime(value)
