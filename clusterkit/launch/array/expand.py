"""Put the values of a sweep into one job: `{key}` in its arguments, `--env` and `--name`. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath

from clusterkit.core.errors import Position, Problem, UserError, did_you_mean
from clusterkit.launch.array.spec import Sweep
from clusterkit.launch.options import JobSpec

INDEX = "index"
"""The number of the element; a key that is always there, so that no sweep may have one like it."""

_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_LITERAL = "for a brace of your own write it twice: {{ or }}"


def jobs_of(sweep: Sweep, job: JobSpec) -> tuple[JobSpec, ...]:
    """Return one job for each element: its values put into arguments, `--env` and `--name`.

    Names that would be alike get the number of the element.

    Raises:
        UserError: a place without a value, a value without a place, or a brace that is neither.
    """
    if INDEX in sweep.keys:
        raise UserError(
            f"{sweep.source} has a key {INDEX}, which is the number of each job already",
            hint="call it something else",
        )
    templates = {f"script argument {number + 1}": text for number, text in enumerate(job.args)}
    templates |= {f"--env {name}": text for name, text in job.env.items()}
    templates |= {"--name": job.name} if job.name else {}
    problems: list[Problem] = []
    used: set[str] = set()
    for where, text in templates.items():
        used |= _places(text, where, sweep, problems)
    unused = [key for key in sweep.keys if key not in used]
    if unused and not problems:
        shown = " ".join(f"--{key} {{{key}}}" for key in unused)
        problems.append(
            Problem(
                message=f"{sweep.source} gives {', '.join(unused)}, which the job does not use",
                hint=f"say where the values go: {PurePath(job.script).name} {shown}",
            )
        )
    missing = (
        Problem(message=f"{sweep.source}: element {element.index} has no value for {key}")
        for key in sweep.keys
        if key in used
        for element in sweep.elements
        if key not in element.values
    )
    problems += itertools.islice(missing, 10)
    if problems:
        raise UserError(problems=problems)
    jobs = [_job_of(job, {INDEX: str(one.index), **one.values}) for one in sweep.elements]
    alike = Counter(job.name for job in jobs)
    return tuple(
        dataclasses.replace(job, name=f"{job.name}-{element.index}") if alike[job.name] > 1 else job
        for job, element in zip(jobs, sweep.elements, strict=True)
    )


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return the template with `{key}` replaced by its value, and `{{`, `}}` by single braces."""

    def one(match: re.Match[str]) -> str:
        return match[0][0] if match[1] is None else values[match[1]]

    return _BRACES.sub(one, template)


def _job_of(job: JobSpec, values: Mapping[str, str]) -> JobSpec:
    args = tuple(fill(arg, values) for arg in job.args)
    env = {name: fill(text, values) for name, text in job.env.items()}
    name = fill(job.name, values) if job.name else job.name_of_script
    return dataclasses.replace(job, args=args, env=env, name=name)


def _places(text: str, where: str, sweep: Sweep, problems: list[Problem]) -> set[str]:
    """Return the keys that a template names; add what is wrong with it."""
    named = set()
    for match in _BRACES.finditer(text):
        key = match[1]
        if key is not None and key in {*sweep.keys, INDEX}:
            named.add(key)
        elif key is not None or len(match[0]) == 1:
            known = f"{', '.join(sweep.keys)} or {INDEX}"
            meant = did_you_mean(key, sweep.keys) if key else None
            position = Position(source=where, line=1, column=match.start() + 1, text=text)
            problems.append(
                Problem(
                    message=f"{match[0]!r} is not a value of {sweep.source}, which has {known}",
                    hint=meant or _LITERAL,
                    position=position,
                )
            )
    return named
