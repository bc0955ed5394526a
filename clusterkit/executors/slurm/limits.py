"""Compare a plan with what its partition has, before sbatch is asked.

Slurm accepts some jobs that can never start and lets them wait; others it refuses without a
figure. What cannot be found out (no sinfo here, a partition that hides itself) is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from clusterkit.config.units import parse_time_limit
from clusterkit.core.commands import run_command
from clusterkit.core.errors import Problem, UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import LaunchPlan
from clusterkit.launch.validate import fewer_nodes, nodes_in_words
from clusterkit.transport import slurm_nodes
from clusterkit.transport.probe import Unparsed

_COLUMNS = 3
_OTHERWISE = "give the component less, or another partition; a node is of one component only"
_GPU = re.compile(r"gpu(?::[^:,()]+)?:(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node as sinfo lists it."""

    name: str
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """What one partition allows and has."""

    name: str
    nodes: tuple[Node, ...]
    hidden: int = 0
    """How many nodes sinfo does not list: those of a cloud that are powered down."""
    max_nodes: int | None = None
    """Most nodes of one job; None for no limit."""
    max_time_s: int | None = None
    sleeps: bool = False
    """Whether it has nodes that Slurm has powered down, and starts for a job."""


def check(plan: LaunchPlan) -> bool:
    """Refuse a plan that none of its partitions can ever run; tell whether nodes may have to boot.

    Raises:
        UserError: it asks for more nodes, GPUs or time than there is, with the figures.
    """
    partitions = [partitions_of(part) for part in plan.parts]
    problems = [*problems_of_parts(plan, partitions), *unknown_nodes(plan, partitions)]
    if problems:
        raise UserError(problems=problems)
    return any(partition.sleeps for some in partitions for partition in some)


def problems_of_parts(plan: LaunchPlan, partitions: Sequence[Sequence[Partition]]) -> list[Problem]:
    """Return why the job, or one of its components, cannot run in the partitions of each.

    A node is of one component only: Slurm would let a job wait for ever where all have too few.
    """
    problems = [
        replace(
            problem,
            message=f"component {number}: {problem.message}",
            hint=hint if (hint := problem.hint or "").startswith("--time ") else _OTHERWISE,
        )
        if plan.components
        else problem
        for number, (part, some) in enumerate(zip(plan.parts, partitions, strict=True), start=1)
        for problem in problems_in_all(part, some)
    ]
    if problems or not all(partitions) or not plan.components:
        return problems
    known = {partition.name: partition for some in partitions for partition in some}
    excluded = set(hostlist.expand(plan.directives.get("exclude") or ""))
    groups = [{partition.name for partition in some} for some in partitions]
    for names in [*groups, {*known}]:
        wanted = [part.nodes for part, own in zip(plan.parts, groups, strict=True) if own <= names]
        nodes = {node.name for name in names for node in known[name].nodes} - excluded
        if sum(wanted) > len(nodes) and not any(known[name].hidden for name in names):
            where = f"partition{'s' * (len(names) > 1)} {', '.join(sorted(names))}"
            message = f"{len(wanted)} components ask for {sum(wanted)} nodes of {where}, "
            have = f"which ha{'ve' if len(names) > 1 else 's'} {len(nodes)}"
            return [Problem(message=message + have, hint=_OTHERWISE)]
    return []


def unknown_nodes(plan: LaunchPlan, partitions: Sequence[Sequence[Partition]]) -> list[Problem]:
    """Return the excluded nodes of which Slurm says that it has none of that name.

    sbatch refuses them with "Invalid node name specified", and does not say which.
    """
    names = {node.name for some in partitions for partition in some for node in partition.nodes}
    excluded = set(hostlist.expand(plan.directives.get("exclude") or "")) - names
    if not names:
        return []
    # sinfo says nothing of a list of which it knows no node.
    if not (unknown := excluded and slurm_nodes.unknown_among({*excluded, min(names)})):
        return []
    message = f"--exclude: Slurm has no node {hostlist.fold_set(unknown)}"
    return [Problem(message=message, hint="sinfo -N lists its nodes")]


def partitions_of(plan: LaunchPlan) -> list[Partition]:
    """Return the partitions in which the job may run, of which Slurm tells."""
    requested = plan.directives.get("partition") or plan.cluster.partition
    return [p for name in _names(requested) if (p := _load(name)) is not None]


def problems_in_all(plan: LaunchPlan, partitions: Sequence[Partition]) -> list[Problem]:
    """Return why the job can run in none of these, by the first; nothing where it can in one."""
    verdicts = [problems_of(plan, partition) for partition in partitions]
    return verdicts[0] if verdicts and all(verdicts) else []


def problems_of(plan: LaunchPlan, partition: Partition) -> list[Problem]:
    """Return why `plan` can never run in `partition`; nothing where it can."""
    excluded = set(hostlist.expand(plan.directives.get("exclude") or ""))
    nodes = [node for node in partition.nodes if node.name not in excluded]
    where = f"partition {partition.name}"
    without = f" without {hostlist.fold_set(excluded)}" if excluded else ""
    problems = _too_many_nodes(plan, partition, len(nodes) + partition.hidden, without)
    if not problems and not partition.hidden:
        problems = _too_many_gpus(plan, nodes, f"{where}{without}")
    return [*problems, *_too_long(plan, partition)]


def _too_many_nodes(
    plan: LaunchPlan, partition: Partition, count: int, without: str
) -> list[Problem]:
    nodes, spares, most = plan.nodes, plan.spares, partition.max_nodes
    requested = f"{nodes_in_words(nodes, spares)} asked for, but partition {partition.name}"
    if nodes + spares > count:
        hint = fewer_nodes(count, nodes, spares) if count else "choose another partition"
        return [Problem(message=f"{requested} has {count}{without}", hint=hint)]
    if most is not None and nodes + spares > most:
        hint = fewer_nodes(most, nodes, spares)
        return [Problem(message=f"{requested} gives a job at most {most}", hint=hint)]
    return []


def _too_long(plan: LaunchPlan, partition: Partition) -> list[Problem]:
    limit = partition.max_time_s
    seconds = plan.time_limit_s
    if limit is None or (seconds is not None and seconds <= limit):
        return []
    if seconds is None and not plan.directives.get("time"):
        return []  # the partition's own default
    requested = clock(seconds) if seconds is not None else "no time limit"
    return [
        Problem(
            message=f"{requested} asked for, but partition {partition.name} allows {clock(limit)}",
            hint=f"--time {clock(limit)}",
        )
    ]


def _too_many_gpus(plan: LaunchPlan, nodes: list[Node], where: str) -> list[Problem]:
    gpus = gpus_per_node(plan.directives)
    able = [node for node in nodes if node.gpus >= gpus]
    needed = plan.nodes + plan.spares
    if not gpus or len(able) >= needed:
        return []
    most = max((node.gpus for node in nodes), default=0)
    have = f"nodes of {where} have at most {most}" if most else f"nodes of {where} have none"
    if able:
        have = f"only {len(able)} of the {len(nodes)} nodes of {where} have that many"
    hint = f"--gpus-per-node {most}" if most else "`gpu_request: none` for CPU nodes"
    if most and plan.cluster.gpus_per_node == gpus:  # nobody may have typed it
        hint += f", or `gpus_per_node: {most}` of cluster {plan.cluster.name}"
    return [
        Problem(
            message=f"{gpus} GPUs per node asked for on {nodes_in_words(needed, 0)}, but {have}",
            hint=hint,
        )
    ]


def gpus_per_node(directives: Mapping[str, str | None]) -> int:
    """Return the GPUs that these sbatch options ask for on each node; 0 for none."""
    per_node = directives.get("gpus-per-node") or directives.get("gpus-per-task")
    if per_node:
        number = per_node.rpartition(":")[2]
        return int(number) if number.isdigit() else 0
    return sum(int(number) for number in _GPU.findall(directives.get("gres") or ""))


def parse_partition(text: str, sinfo: str) -> Partition | None:
    """Read a line of `scontrol show partition -o` and `sinfo -h -N -o "%N|%T|%G"`."""
    fields = dict(word.partition("=")[::2] for word in text.split())
    if "PartitionName" not in fields:
        return None
    rows = [row for line in sinfo.splitlines() if len(row := line.split("|", 2)) == _COLUMNS]
    if not rows:
        return None
    most, total = fields.get("MaxNodes", ""), fields.get("TotalNodes", "")
    hidden = max(0, int(total) - len(rows)) if total.isdigit() else 0
    return Partition(
        name=fields["PartitionName"],
        nodes=tuple(
            Node(name=name.strip(), gpus=sum(int(n) for n in _GPU.findall(gres)))
            for name, _, gres in rows
        ),
        hidden=hidden,
        max_nodes=int(most) if most.isdigit() else None,
        max_time_s=seconds_of(fields.get("MaxTime", "")),
        sleeps=bool(hidden) or any(_sleeps(state) for _, state, _ in rows),
    )


def _sleeps(state: str) -> bool:
    with suppress(Unparsed):
        return bool(slurm_nodes.asleep(slurm_nodes.states_of(state)))
    return False


def _names(listed: str | None) -> list[str]:
    if listed:
        return [name for name in listed.split(",") if name]
    answer = run_command(["scontrol", "show", "partition", "-o"])
    lines = [line for line in answer.output.splitlines() if " Default=YES" in line]
    return [match[1] for line in lines if (match := re.match(r"PartitionName=(\S+)", line))]


def _load(name: str) -> Partition | None:
    about = run_command(["scontrol", "show", "partition", "-o", name])
    nodes = run_command(["sinfo", "-h", "-N", "-p", name, "-o", "%N|%T|%G"])
    if about.code or nodes.code:
        return None
    return parse_partition(about.output, nodes.output)


def seconds_of(text: str) -> int | None:
    """Return a time limit in seconds; None for no limit, and for what is none."""
    with suppress(ValueError):
        return parse_time_limit(text)
    return None


def clock(seconds: int) -> str:
    """Return seconds as Slurm and `--time` have them: `1-12:00:00`."""
    days, rest = divmod(seconds, 86400)
    text = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text
