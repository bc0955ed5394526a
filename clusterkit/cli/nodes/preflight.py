"""`clusterkit preflight`: prove that every node is fit, and name the one that is not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import CLUSTER_VARIABLE, cluster_option, hosts_option
from clusterkit.cli.nodes import preflight_report as output
from clusterkit.core.errors import Problem, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterkit.preflight.bundle import Bundle
    from clusterkit.preflight.checks import Check
    from clusterkit.preflight.request import Wanted

EXIT_FINDINGS = 1
EXIT_COULD_NOT = 2


def _option(*names: str, help_text: str, panel: str = "Options", **more: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, show_default=False, **more)


def preflight(
    cluster: Annotated[
        str | None, cluster_option("Cluster of clusterkit.yaml, or local.", panel="Nodes")
    ] = None,
    nodes: Annotated[
        int | None,
        _option("--nodes", "-n", help_text="So many nodes of it.", panel="Nodes", metavar="N"),
    ] = None,
    hosts: Annotated[str | None, hosts_option("These hosts, as n[1-4].", panel="Nodes")] = None,
    hostfile: Annotated[
        Path | None,
        _option("--hostfile", help_text="Those of a hostfile.", panel="Nodes", metavar="FILE"),
    ] = None,
    via: Annotated[
        str | None,
        _option(
            "--via",
            help_text="ssh, srun or local; else what fits the cluster.",
            panel="Nodes",
            metavar="HOW",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        _option(
            "--timeout",
            help_text="Seconds to reach a node, or to get an allocation (10).",
            panel="Nodes",
            metavar="S",
        ),
    ] = None,
    select: Annotated[
        str | None,
        _option("--select", help_text="Only these checks: ids or areas.", metavar="ID,.."),
    ] = None,
    ignore: Annotated[
        str | None, _option("--ignore", help_text="Not these checks.", metavar="ID,..")
    ] = None,
    network: Annotated[
        bool, _option("--network", help_text="Also measure the traffic between the nodes.")
    ] = False,
    framework: Annotated[
        str | None,
        _option("--framework", "-f", help_text="What will start the job.", metavar="NAME"),
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        _option("--gpus-per-node", "-g", help_text="GPUs the job wants of each.", metavar="G"),
    ] = None,
    path: Annotated[
        list[str] | None,
        _option("--path", help_text="A folder all nodes must share; repeatable.", metavar="DIR"),
    ] = None,
    env: Annotated[
        list[str] | None,
        _option("--env", "-e", help_text="A variable of the job; repeatable.", metavar="K=V"),
    ] = None,
    image: Annotated[
        str | None,
        _option("--image", help_text="An image every node must have.", metavar="NAME"),
    ] = None,
    save: Annotated[
        Path | None,
        _option("--save", help_text="Keep what the nodes said.", panel="Bundle", metavar="DIR"),
    ] = None,
    replay: Annotated[
        Path | None,
        _option("--replay", help_text="Judge what was kept.", panel="Bundle", metavar="DIR"),
    ] = None,
    strict: Annotated[
        bool, _option("--strict", help_text="Warnings and unknowns count as failures.")
    ] = False,
    html: Annotated[
        Path | None,
        _option("--html", help_text="Write the report as a page.", panel="Output", metavar="FILE"),
    ] = None,
    write_hostfile: Annotated[
        Path | None,
        _option(
            "--write-hostfile",
            help_text="Write the usable nodes as a hostfile.",
            panel="Output",
            metavar="FILE",
        ),
    ] = None,
    write_excluded: Annotated[
        Path | None,
        _option(
            "--write-excluded",
            help_text="Write the nodes to be left out as one.",
            panel="Output",
            metavar="FILE",
        ),
    ] = None,
    prometheus: Annotated[
        Path | None,
        _option(
            "--prometheus",
            help_text="Write metrics for node exporter's textfile collector.",
            panel="Output",
            metavar="FILE",
        ),
    ] = None,
    drain_command: Annotated[
        bool,
        _option(
            "--drain-command",
            help_text="Print the scontrol lines that would drain the unfit; run nothing.",
            panel="Output",
        ),
    ] = False,
    verbose: Annotated[
        bool, _option("--verbose", "-v", help_text="Show what passed, too.", panel="Output")
    ] = False,
    json: Annotated[
        bool, _option("--json", help_text="Print one JSON document.", panel="Output")
    ] = False,
) -> None:
    """Prove that every node is fit for a job, and name those that are not.

    Changes nothing on any node. `clusterkit explain checks` lists what is checked.

    Exit code: 0 all fit, 1 some are not, 2 could not do it.
    """
    from clusterkit.preflight.drain import drain_commands, require_slurm
    from clusterkit.preflight.evaluate import evaluate
    from clusterkit.preflight.request import Wanted
    from clusterkit.preflight.selection import asks_for_peers, checks_to_ask, checks_to_judge

    selected, ignored = _words("--select", select), _words("--ignore", ignore)
    places = output.Places(
        bundle=save,
        page=html,
        hostfile=write_hostfile,
        excluded=write_excluded,
        metrics=prometheus,
    )
    if replay is not None:
        _refuse_beside_replay(
            save=save, nodes=nodes, hosts=hosts, hostfile=hostfile, via=via, timeout=timeout,
            framework=framework, gpus_per_node=gpus_per_node, path=path, env=env, image=image,
            network=network or None, prometheus=prometheus,
            cluster=None if cluster == os.environ.get(CLUSTER_VARIABLE) else cluster,
        )  # fmt: skip
        bundle = _replayed(replay)
        if drain_command:
            require_slurm(bundle.job)
        places.require()
        chosen = checks_to_judge(selected, ignored, bundle)
    else:
        wanted = Wanted(
            nodes=nodes,
            hosts=hosts,
            hostfile=hostfile,
            via=via,
            timeout_s=timeout,
            framework=framework,
            gpus_per_node=gpus_per_node,
            paths=tuple(path or ()),
            env=_variables(env or ()),
            image=image,
            peer_ssh=asks_for_peers(selected),
        )
        chosen = checks_to_ask(selected, ignored, network=network)
        bundle = _collected(wanted, cluster, chosen, places, to_drain=drain_command)
    report = evaluate(bundle, chosen, strict=strict)
    unwritten = places.fill(bundle, report)
    if json:
        lines = {"drain_commands": tuple(drain_commands(report, bundle))} if drain_command else {}
        console.json_document({**report.document(), **lines})
    elif drain_command:
        output.print_drain_commands(report, bundle)
    else:
        output.show(report, verbose=verbose)
    for problem in unwritten:
        console.error(str(problem))
    raise typer.Exit(EXIT_COULD_NOT if unwritten else EXIT_FINDINGS if report.bad else 0)


def _collected(
    wanted: Wanted,
    cluster: str | None,
    checks: Sequence[Check],
    places: output.Places,
    *,
    to_drain: bool,
) -> Bundle:
    from clusterkit.config import load_settings
    from clusterkit.preflight.drain import require_slurm
    from clusterkit.preflight.targets import aim, gather

    settings = load_settings()
    spec = settings.cluster(cluster)
    for problem in settings.warnings_of(spec.name):
        console.warn(str(problem))
    target = aim(wanted, spec)
    if to_drain:
        require_slurm(target.job)
    places.require()
    with output.counting(len(target.job.hosts)) as heard:
        return gather(target, checks, heard=heard)


def _replayed(folder: Path) -> Bundle:
    from clusterkit.core.version import __version__
    from clusterkit.preflight.bundle_reader import read_bundle

    bundle = read_bundle(folder)
    if bundle.written_by != __version__:
        console.note(
            f"{folder} was written by clusterkit {bundle.written_by}, judged by {__version__}"
        )
    return bundle


def _words(flag: str, text: str | None) -> tuple[str, ...]:
    words = tuple(word for part in (text or "").split(",") if (word := part.strip()))
    if text is not None and not words:
        raise UserError(
            f"{flag} names no check",
            hint=f"such as {flag} GPU,IB001; `clusterkit explain checks` lists them",
        )
    return words


def _variables(pairs: Sequence[str]) -> dict[str, str]:
    from clusterkit.jobs.submit.request import parse_pairs

    problems: list[Problem] = []
    parsed = parse_pairs("--env", pairs, problems)
    if problems:
        raise UserError(problems=problems)
    return parsed


def _refuse_beside_replay(**given: object) -> None:
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if names:
        raise UserError(
            f"--replay asks no node, so {', '.join(names)} has no meaning beside it",
            hint="leave it out, or leave --replay out",
        )
