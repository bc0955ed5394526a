"""From flags and job file to a `JobSpec` on a `ClusterSpec`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from clusterkit import hostlist
from clusterkit.cli import console
from clusterkit.cli.job_flags import JobFlags
from clusterkit.config import load_settings
from clusterkit.errors import Problem, UserError, choices_hint
from clusterkit.model import ClusterSpec, ContainerRuntime, JobSpec


def job_and_cluster(flags: JobFlags) -> tuple[JobSpec, ClusterSpec]:
    """Return the `JobSpec` and `ClusterSpec` that flags, job file and configuration describe.

    Raises:
        UserError: anything in them is wrong; all problems of one source at once.
    """
    from_file: Mapping[str, Any] = {}
    if flags.job:
        from clusterkit.config import load_job_file

        from_file = load_job_file(flags.job)
    given = {
        field.name: value
        for field in dataclasses.fields(flags)
        if (value := getattr(flags, field.name)) not in (None, [])
    }
    if "set_" in given:
        given["set"] = given.pop("set_")
    _warn_of_flags_behind(flags)
    cluster = load_settings().cluster(given.get("cluster", from_file.get("cluster")))
    return _job_spec({**from_file, **given}, from_file), cluster


def _warn_of_flags_behind(flags: JobFlags) -> None:
    """Warn where what looks like a flag of ours stands behind the script, and so goes to it."""
    ours = {f"--{field.name.rstrip('_').replace('_', '-')}" for field in dataclasses.fields(flags)}
    behind = [word for word in flags.args or () if word.partition("=")[0] in ours]
    if behind:
        console.warn(
            f"{behind[0]} stands after {flags.script} and goes to the script;\n"
            "  flags of clusterkit stand before it"
        )


def _job_spec(values: Mapping[str, Any], from_file: Mapping[str, Any]) -> JobSpec:
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
        exclude=hostlist.expand(values.get("exclude", ""), source="--exclude"),
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


def _parse_container(value: str | None, problems: list[Problem]) -> ContainerRuntime | None:
    if value is None:
        return None
    names = [runtime.value for runtime in ContainerRuntime]
    if value not in names:
        problems.append(
            Problem(message=f"unknown container runtime {value!r}", hint=choices_hint(value, names))
        )
        return None
    return ContainerRuntime(value)
