"""From the values of flags and job file to a `JobSpec`; all that is wrong at once."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterkit.core.errors import Problem, UserError, choices_hint
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import SYNC_LIMIT_MIB, ContainerRuntime, JobSpec
from clusterkit.launch.frameworks import framework_names, load_framework


def job_spec(
    values: Mapping[str, Any], from_file: Mapping[str, Any], verb: str, problems: list[Problem]
) -> JobSpec | None:
    """Return the job, or None where `problems` holds one; what is wrong is added there."""
    if not values.get("script"):
        hint = f"clusterkit {verb} --framework torchrun --nodes 2 train.py"
        problems.append(Problem(message="no training script", hint=hint))
    framework = _known_framework(values.get("framework"), problems)
    nodes, max_nodes = _parse_nodes(str(values.get("nodes", "1")), problems)
    slots = _parse_slots(values.get("gpus_per_node", ""), problems)
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
    return JobSpec(
        framework=framework,
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
        exclude=excluded,
        sync=sync,
        sync_limit_mib=values.get("sync_limit", SYNC_LIMIT_MIB),
        sbatch_options=sbatch,
        launcher_options=launcher,
        image=values.get("image"),
        container=container,
        mounts=tuple(values.get("mount", ())),
        requeue=values.get("requeue", 0),
        spares=values.get("spares", 0),
        deepspeed_preset=values.get("ds_preset"),
    )


def _known_framework(name: str | None, problems: list[Problem]) -> str:
    """Return the name of a framework that there is; else the empty text."""
    if name is None:
        names = framework_names()
        listed = ", ".join(names[:-1]) + f" or {names[-1]}"
        hint = f"--framework {listed}\n  clusterkit explain frameworks tells them apart"
        problems.append(Problem(message="no framework", hint=hint))
        return ""
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
    wrong = (
        "the name is empty"
        if not text.strip()
        else "is a file, not a folder"
        if path.is_file()
        else "no such folder"
        if not path.is_dir()
        else None
    )
    if wrong:
        hint = "--sync DIR, such as --sync ."
        problems.append(
            Problem(message=f"--sync {shlex.quote(text)}: {wrong}", hint=hint, key="sync")
        )
    return os.path.realpath(path)


def _parse_nodes(text: str, problems: list[Problem]) -> tuple[int, int | None]:
    match = re.fullmatch(r"(-?\d{1,18})(?::(\d{1,18}))?", text.strip())
    if match is None:
        problems.append(
            Problem(message=f"--nodes {text[:40]!r} is no number", hint="--nodes 4, or --nodes 2:8")
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
                message=f"--gpus-per-node {str(value)[:40]!r} is no number",
                hint="--gpus-per-node 8, or one number a node: --gpus-per-node 8,4",
            )
        )
        return ()


def parse_pairs(flag: str, value: Any, problems: list[Problem]) -> dict[str, str]:
    """Return the pairs of a repeated `K=V` flag, or of a job file; add what is wrong."""
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
        elif dot and framework in {scope, ""}:  # one that there is not is trouble enough
            launcher[option] = value
        else:
            problems.append(
                Problem(
                    message=f"--set {key}: nothing to set by that name",
                    hint=f"--set sbatch.{option or key}=... or --set "
                    f"{framework or 'FRAMEWORK'}.{option or key}=...",
                    key=f"set.{key}",
                )
            )
    return sbatch, launcher


def _parse_container(value: str | None, problems: list[Problem]) -> ContainerRuntime | None:
    if value is None:
        return None
    names = [runtime.value for runtime in ContainerRuntime]
    if value not in names:
        problems.append(
            Problem(
                message=f"unknown container runtime {value!r}",
                hint=choices_hint(value, names),
                key="container",
            )
        )
        return None
    return ContainerRuntime(value)
