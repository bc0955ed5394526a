"""`clusterkit nodes`: make the machines of a cluster of kind ssh ready for jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained, group
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.cli.nodes.answers import TIMEOUT_S, report, require_time
from clusterkit.core.errors import UserError
from clusterkit.core.hosts.hostlist import expand, fold_set
from clusterkit.core.text import table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterkit.core.model import ClusterSpec
    from clusterkit.transport.sync.virtualenv import Prepared

app = group("Make machines reached by SSH ready for jobs, and run commands on nodes.")

_COLOURS = {"up to date": "green", "ready": "green", "failed": "red"}


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
    Nodes that have it already are left alone. Exit code 1 where one is not ready.
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

    On Slurm through your own jobs, or with `--via srun` in an allocation of
    its own. The command gets no input and no shell: where it needs one,
    `-- sh -c '...'`.

    Exit code 0 if it was 0 on all nodes, else 1.
    """
    from clusterkit.config.load import load_settings
    from clusterkit.jobs.inside import run_on
    from clusterkit.jobs.nodes import of_cluster
    from clusterkit.preflight.request import PreflightOptions

    require_time(timeout)
    subject = of_cluster(load_settings().cluster(cluster), PreflightOptions(hosts=hosts, via=via))
    report(command, run_on(subject, command, timeout_s=timeout), as_json=json)


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
    for how in sorted(groups, key=lambda row: severity.index(row[0])):
        readiness, detail, hint = how
        word = console.coloured(readiness.value, _COLOURS[readiness.value])
        rows.append((fold_set(groups[how]), f"{word}  {detail}"))
        rows += [("", f"hint: {hint}")] if hint else []
    console.say(*table(rows))
