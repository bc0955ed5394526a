"""The slots of hosts: chosen as by DeepSpeed's filters, and those of a Slurm allocation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Mapping, Sequence

from clusterkit.core.errors import Position, Problem, UserError, choices_hint
from clusterkit.core.hosts.hostfile import MAX_SLOTS, is_host_name
from clusterkit.core.hosts.hostlist import expand, parse_tasks_per_node
from clusterkit.core.model import Host

_UNKNOWN = -1
"""The one slot number of a host whose slots are unknown; no filter can name it."""


def filter_slots(
    pool: Mapping[str, tuple[int, ...]],
    include: str | None = None,
    exclude: str | None = None,
    *,
    prefix: str = "--",
) -> dict[str, tuple[int, ...]]:
    """Return the part of `pool` that a filter leaves, in the pool's order.

    A filter is `HOST[:SLOT[,SLOT]...][@HOST...]`; a host alone means all its slots, also where
    it stands again with some of them. Hosts with no slot left are gone; nothing may be left.
    Grammar and semantics are those that DeepSpeed documents for `--include` and `--exclude`;
    errors call these by their names after `prefix`.

    Raises:
        UserError: both filters are given, or one names a host or slot that the pool has not, or
            is not of that form.
    """
    if include and exclude:
        raise UserError(
            f"{prefix}include and {prefix}exclude exclude each other", hint="give one of them"
        )
    if include:
        chosen = _parse(include, pool, f"{prefix}include")
        left = {host: tuple(sorted(chosen.get(host, ()))) for host in pool}
    else:
        removed = _parse(exclude, pool, f"{prefix}exclude") if exclude else {}
        left = {
            host: tuple(slot for slot in slots if slot not in removed.get(host, ()))
            for host, slots in pool.items()
        }
    return {host: slots for host, slots in left.items() if slots}


def pool_of_unnamed(nodes: int, slots: int, text: str) -> dict[str, tuple[int, ...]]:
    """Return the pool of `nodes` hosts alike whose names show only later, as filter `text` has it.

    The hosts that it names come first; those that it does not have names that none can have.

    Raises:
        UserError: it names what is no host, or more hosts than there are.
    """
    named = dict.fromkeys(_split(spec, ())[0] for spec in text.split("@"))
    named.pop("", None)  # which the parser tells apart
    problems = [
        Problem(message=f"{host!r} is not a host name", hint="write HOST[:SLOT,...][@HOST...]")
        for host in named
        if not is_host_name(host)
    ]
    if not problems and len(named) > nodes:
        count = f"{nodes} node" + ("s" if nodes > 1 else "")
        message = f"{text!r} names {len(named)} hosts, and the job has {count}"
        problems = [Problem(message=message, hint=f"--nodes {len(named)}")]
    if problems:
        raise UserError(problems=problems)
    others = (f" {number}" for number in range(nodes - len(named)))
    return dict.fromkeys((*named, *others), tuple(range(slots)))


def filter_hosts(
    hosts: Sequence[Host], include: str | None = None, exclude: str | None = None
) -> tuple[tuple[Host, ...], tuple[Problem, ...]]:
    """Return the hosts that a filter leaves, with the slots it leaves, and warnings.

    A hostfile counts slots and launchers number them from 0, so each host of which the filter
    leaves anything but the first slots gets a warning that says how to have just those. Hosts
    with unknown slots can be filtered by name.

    Raises:
        UserError: as `filter_slots`, or no host is left.
    """
    unknown = {host.name for host in hosts if host.slots is None}
    pool = {host.name: tuple(range(host.slots or 0)) or (_UNKNOWN,) for host in hosts}
    left = filter_slots(pool, include, exclude)
    if hosts and not left:
        raise UserError("the filter leaves no host", hint="name fewer hosts in --exclude")
    warnings = [
        Problem(
            message=f"of {name} slots {','.join(map(str, slots))} are left; a hostfile can only "
            f"say that there are {len(slots)}",
            hint=f"set CUDA_VISIBLE_DEVICES={','.join(map(str, slots))} on {name}",
        )
        for name, slots in left.items()
        if name not in unknown and slots != tuple(range(len(slots)))
    ]
    kept = tuple(
        host if host.name in unknown else dataclasses.replace(host, slots=len(left[host.name]))
        for host in hosts
        if host.name in left
    )
    return kept, tuple(warnings)


def _parse(
    text: str, pool: Mapping[str, tuple[int, ...]], flag: str
) -> Mapping[str, frozenset[int]]:
    chosen: dict[str, frozenset[int]] = {}
    problems: list[Problem] = []
    column = 1
    for spec in text.split("@"):
        position = Position(source=flag, line=1, column=column, text=text)
        column += len(spec) + 1
        host, colon, numbers = _split(spec, pool)
        if host not in pool:
            known = choices_hint(host, pool) if host else "write HOST[:SLOT,...][@HOST...]"
            problems.append(
                Problem(message=f"there is no host {host!r}", hint=known, position=position)
            )
            continue
        slots = set(pool[host]) if not colon else set[int]()
        for number in numbers.split(",") if colon else ():
            wrong = _wrong_slot(number, host, pool[host])
            if wrong is None:
                slots.add(int(number))
            else:
                problems.append(dataclasses.replace(wrong, position=position))
        chosen[host] = chosen.get(host, frozenset()) | slots
    if problems:
        raise UserError(problems=problems)
    return chosen


def _split(spec: str, pool: Container[str]) -> tuple[str, str, str]:
    if spec in pool:
        return spec, "", ""
    # From the right, as an IPv6 address has colons of its own.
    host, colon, numbers = spec.rpartition(":")
    return (host, colon, numbers) if colon else (spec, "", "")


def _wrong_slot(number: str, host: str, slots: tuple[int, ...]) -> Problem | None:
    if not (number.isascii() and number.isdigit()) or len(number) > 9:
        message = f"{number!r} is not a slot number"
        hint = "write every number: 0,1,2" if "-" in number else "write HOST:0,1"
    elif slots == (_UNKNOWN,):
        message = f"the slots of host {host!r} are unknown"
        hint = "say --slots N, or name the host alone"
    elif int(number) not in slots:
        message = f"host {host!r} has no slot {int(number)}"
        hint = f"it has {','.join(map(str, slots)) or 'none'}"
    else:
        return None
    return Problem(message=message, hint=hint)


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
            f"{value!r} is not a number of GPUs",
            hint="such as '8' or 'a100:8'; or say --slots N",
            position=Position(source=variable, line=1, column=1, text=value),
        )
    return int(match[1])
