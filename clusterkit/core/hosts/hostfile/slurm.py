"""Tell the hosts of a Slurm allocation from its environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping

from clusterkit.core.errors import Position, UserError
from clusterkit.core.hosts.hostfile.formats import MAX_SLOTS
from clusterkit.core.hosts.hostlist import expand, parse_tasks_per_node
from clusterkit.core.model import Host

_NODES = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
_TASKS = "SLURM_TASKS_PER_NODE"
_COUNT = re.compile(r"(?:[^,:]+:)*([0-9]{1,9})", re.ASCII)


def hosts_of_allocation(
    environment: Mapping[str, str], slots: int | None = None
) -> tuple[Host, ...] | None:
    """Return the hosts of the allocation in rank order, or None outside an allocation.

    A host has as many slots as GPUs (`SLURM_GPUS_PER_NODE`, else what this node has,
    `SLURM_GPUS_ON_NODE`), and where there are none as many as Slurm would start tasks there;
    `slots` beats both. Variables as in "OUTPUT ENVIRONMENT VARIABLES" of man sbatch.

    Raises:
        UserError: a variable does not hold what Slurm puts there, or the GPUs were asked for as a
            total (`--gpus`) and are spread unevenly.
    """
    variable = next((name for name in _NODES if environment.get(name, "").strip()), None)
    if variable is None:
        return None
    names = expand(environment[variable], source=variable)
    gpus = slots or _gpus(environment, len(names))
    counts = [gpus] * len(names)
    if gpus is None and environment.get(_TASKS):
        tasks = parse_tasks_per_node(environment[_TASKS], source=_TASKS)
        if len(tasks) != len(names):
            raise UserError(
                f"{_TASKS} is about {len(tasks)} nodes, {variable} about {len(names)}",
                hint="inside a job step they may differ; say --slots N",
            )
        counts = list(tasks)
    return tuple(Host(name=name, slots=count) for name, count in zip(names, counts, strict=True))


def _gpus(environment: Mapping[str, str], nodes: int) -> int | None:
    per_node = _count(environment, "SLURM_GPUS_PER_NODE")
    if per_node:
        return per_node
    here = _count(environment, "SLURM_GPUS_ON_NODE")
    total = _count(environment, "SLURM_GPUS")
    if here and total and here * nodes != total:
        raise UserError(
            f"this node has {here} of the {total} GPUs that {nodes} nodes share: not evenly spread",
            hint="ask Slurm for --gpus-per-node, or say --slots N",
        )
    return here or None


def _count(environment: Mapping[str, str], variable: str) -> int:
    value = environment.get(variable) or "0"
    match = _COUNT.fullmatch(value)
    if match is None or int(match[1]) > MAX_SLOTS:
        raise UserError(
            f"{value!r} is no number of GPUs",
            hint="such as '8' or 'a100:8'; or say --slots N",
            position=Position(source=variable, line=1, column=1, text=value),
        )
    return int(match[1])
