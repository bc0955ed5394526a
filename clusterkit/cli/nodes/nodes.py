"""`clusterkit nodes`: make machines ready for jobs, run commands on nodes, show what is free."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained, group
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.cli.nodes.answers import TIMEOUT_S, report, require_time, require_words
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.hosts.hostlist import expand, fold_set
from clusterkit.core.text import WIDTH, harmless, table, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterkit.core.model import ClusterSpec
    from clusterkit.transport.slurm_nodes import SlurmNode
    from clusterkit.transport.sync.virtualenv import Prepared

app = group("Make machines reached by SSH ready, run commands on nodes, see what is free.")

_COLOURS = {"up to date": "green", "ready": "green", "failed": "red"}
_LEAST_ROOM = 40
"""Columns of a hint beside names of nodes, however long those are."""


@app.command()
@explained
def prepare(
    cluster: str | None = None,
    hosts: str | None = None,
    wheels: list[Path] | None = None,
    requirements: Path | None = None,
    python: str | None = None,
    index: bool = False,
    json: JsonFlag = False,
) -> None:
    """Make or update the virtual environment on every node.

    Of a cluster that has `login`, that is on the login node.
    Nodes that have it already are left alone; an environment that you have
    made yourself is only checked. Exit code 1 where one is not ready.
    """
    from clusterkit.config.load import load_settings
    from clusterkit.transport.sync.ingredients import read_ingredients
    from clusterkit.transport.sync.virtualenv import Readiness, prepare_nodes

    spec = load_settings().cluster(cluster)
    names = _hosts(spec, hosts)
    ingredients = read_ingredients(
        spec, wheels=wheels or (), requirements=requirements, python=python, index=index
    )
    if spec.shared_filesystem and spec.login is None:
        console.note(
            f"note: {spec.name} shares a file system, so its node agents use this machine's "
            "Python; the environment is used only where `python:` names it"
        )
    prepared = prepare_nodes(spec, names, ingredients)
    if json:
        console.json_document({"cluster": spec.name, "venv": spec.venv, "nodes": prepared})
    else:
        _report(prepared)
    if any(one.readiness is Readiness.FAILED for one in prepared):
        raise typer.Exit(EXIT_FINDINGS)


@app.command()
@explained
def run(
    command: list[str],
    cluster: str | None = None,
    hosts: str | None = None,
    via: str | None = None,
    timeout: float = TIMEOUT_S,
    json: JsonFlag = False,
) -> None:
    """Run a command on all nodes at once, and print once what they print alike.

    On Slurm through your own jobs; where you have none, in an allocation of
    the free nodes (`--via srun`). The command gets no input and no shell:
    where it needs one, `-- sh -c '...'`.

    Exit code 0 if it was 0 on all nodes, else 1.
    """
    from clusterkit.config.load import load_settings
    from clusterkit.jobs.inside import run_on
    from clusterkit.jobs.nodes import of_cluster
    from clusterkit.preflight.request import PreflightOptions

    require_words(command)
    require_time(timeout)
    options = PreflightOptions(hosts=hosts, via=via)
    subject = of_cluster(load_settings().cluster(cluster), options, allocate=True)
    if subject.note:
        console.note(subject.note)
    report(command, run_on(subject, command, timeout_s=timeout), as_json=json)


@app.command()
@explained
def free(cluster: str | None = None, partition: str | None = None, json: JsonFlag = False) -> None:
    """Show how many GPUs and CPUs of a Slurm cluster are free, by node.

    Slurm's controller alone is asked: no node is, and none is woken. A node
    that is powered down is free, and boots for the job that gets it.
    """
    from clusterkit.config.load import load_settings
    from clusterkit.preflight.hosts import of_partition
    from clusterkit.transport.slurm_nodes import known_nodes

    spec = load_settings().cluster(cluster)
    if not spec.kind.scheduled:
        raise UserError(
            f"cluster {spec.name} is of kind {spec.kind.value}, and has no scheduler to ask",
            hint=f"what its nodes do: clusterkit top --cluster {spec.name}",
        )
    partition = partition or spec.partition
    try:
        names = [host.name for host in of_partition(partition)]
    except RemoteError as error:
        raise RemoteError(error.message, hint="clusterkit doctor") from error
    if not names:
        where = f"partition {partition}" if partition else "the cluster"
        raise UserError(f"Slurm shows no node of {where}", hint="its partitions: sinfo -s")
    nodes = known_nodes(names)
    if json:
        described = [_described(node) for node in nodes]
        console.json_document({"cluster": spec.name, "partition": partition, "nodes": described})
        return
    console.say(*table(_free_rows(nodes), "<<>>"))
    if any(node.free_gpus is None for node in nodes):
        console.note(
            "?: Slurm does not say how many GPUs jobs have there: AccountingStorageTRES in"
        )
        console.note("   its slurm.conf does not name gres/gpu")


def _described(node: SlurmNode) -> dict[str, object]:
    return {
        "node": node.name,
        "state": node.words,
        "open": node.open,
        "gpus": node.gpus,
        "gpus_free": node.free_gpus,
        "cpus": node.cpus,
        "cpus_free": node.free_cpus,
        "reason": node.reason or None,
    }


def _free_rows(nodes: Iterable[SlurmNode]) -> list[tuple[str, ...]]:
    """Return a line for all nodes of which the same is to be said, the freest first."""
    groups: dict[tuple[object, ...], list[SlurmNode]] = {}
    for node in nodes:
        same = (node.words, node.free_gpus, node.gpus, node.free_cpus, node.cpus, node.reason)
        groups.setdefault(same, []).append(node)
    rows: list[tuple[str, ...]] = [("NODES", "STATE", "GPUS FREE", "CPUS FREE", "REASON")]
    for alike in sorted(groups.values(), key=_room, reverse=True):
        one, count = alike[0], len(alike)
        names = fold_set(node.name for node in alike)
        gpus = _share(one.free_gpus, one.gpus, count)
        reason = "" if one.open else harmless(one.reason)
        rows.append((names, one.words, gpus, _share(one.free_cpus, one.cpus, count), reason))
    return rows


def _room(alike: Sequence[SlurmNode]) -> tuple[int, ...]:
    one, count = alike[0], len(alike)
    gpus, cpus = (one.free_gpus or 0) * count, (one.free_cpus or 0) * count
    return one.open, gpus + cpus > 0, one.up, gpus, cpus


def _share(free: int | None, of: int | None, count: int) -> str:
    """Return how many of all are free on `count` nodes; `-` where a node has none."""
    if not of:
        return "-"
    return f"{'?' if free is None else free * count} of {of * count}"


def _hosts(spec: ClusterSpec, listed: str | None) -> tuple[str, ...]:
    if spec.login is not None:
        if listed is not None:
            raise UserError(
                f"--hosts: of cluster {spec.name}, {spec.login} alone is prepared",
                hint="leave it out",
            )
        return (spec.login,)
    if not spec.kind.lists_hosts:
        raise UserError(
            f"cluster {spec.name} is of kind {spec.kind.value}, and needs no preparing",
            hint="name one of kind ssh, or that has `login`: --cluster NAME",
        )
    if listed is not None and not listed.strip():
        raise UserError("--hosts: the list is empty", hint="leave it out for all hosts")
    known = tuple(dict.fromkeys(host.name for host in spec.hosts))
    names = tuple(dict.fromkeys(expand(listed, source="--hosts"))) if listed else known
    strangers = [name for name in names if name not in known]
    if strangers:
        raise UserError(
            f"cluster {spec.name} has no host {strangers[0]}",
            hint=f"its hosts: clusterkit hostfile --cluster {spec.name} --format names",
        )
    return names


def _report(prepared: Iterable[Prepared]) -> None:
    """Print one line for all nodes of which the same is to be said, the worst last."""
    from clusterkit.transport.sync.virtualenv import Readiness

    groups: dict[tuple[Readiness, str, str | None], list[str]] = {}
    for one in prepared:
        groups.setdefault((one.readiness, one.detail, one.hint), []).append(one.node)
    severity, rows = list(Readiness), []
    room = max(_LEAST_ROOM, WIDTH - 2 - max(map(len, map(fold_set, groups.values())), default=0))
    for how in sorted(groups, key=lambda row: severity.index(row[0])):
        readiness, detail, hint = how
        word = console.coloured(readiness.value, _COLOURS[readiness.value])
        rows.append((fold_set(groups[how]), f"{word}  {detail}"))
        rows += [("", line) for line in wrapped(f"hint: {hint}", width=room)] if hint else []
    console.say(*table(rows))
