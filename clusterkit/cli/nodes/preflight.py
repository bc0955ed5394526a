"""`clusterkit preflight`: prove that every node is healthy, and name the one that is not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import CLUSTER_VARIABLE, explained
from clusterkit.cli.frame.job_options import takes_rows
from clusterkit.cli.frame.main import EXIT_COULD_NOT, EXIT_FINDINGS
from clusterkit.core.errors import Problem, UserError
from clusterkit.launch.options import rows_of
from clusterkit.preflight.request import PreflightOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterkit.preflight.bundle import Bundle
    from clusterkit.preflight.checks import Check


@takes_rows(rows_of(PreflightOptions).values())
@explained
def preflight(
    options: Mapping[str, Any],
    save: Path | None = None,
    html: Path | None = None,
    write_hostfile: Path | None = None,
    write_excluded: Path | None = None,
    prometheus: Path | None = None,
    drain_command: bool = False,
    verbose: bool = False,
    json: bool = False,
) -> None:
    """Prove that every node is healthy, and name those that are not.

    Changes nothing on any node. `clusterkit explain checks` lists what is checked.

    Exit code: 0 all healthy, 1 some are not, 2 could not do it.
    """
    from clusterkit.cli.nodes import preflight_report as output
    from clusterkit.preflight.collect import checks_to_ask, checks_to_evaluate
    from clusterkit.preflight.evaluate import evaluate
    from clusterkit.preflight.text import drain_commands, require_slurm

    selected, ignored = (_words(f"--{name}", options.get(name)) for name in ("select", "ignore"))
    outputs = {
        "--prometheus": prometheus,
        "--html": html,
        "--write-hostfile": write_hostfile,
        "--write-excluded": write_excluded,
        "--save": save,
    }
    places = {flag: path for flag, path in outputs.items() if path is not None}
    if "replay" in options:
        _refuse_beside_replay({**options, "save": save, "prometheus": prometheus})
        bundle = _replayed(Path(options["replay"]))
        if drain_command:
            require_slurm(bundle.job)
        output.require(places)
        chosen = checks_to_evaluate(selected, ignored, bundle)
    else:
        given = {**options, "select": selected, "env": _variables(options.get("env", ()))}
        chosen = checks_to_ask(selected, ignored, network="network" in options)
        bundle = _collected(PreflightOptions(**given), chosen, places, to_drain=drain_command)
    report = evaluate(bundle, chosen, strict="strict" in options)
    unwritten = output.fill(places, bundle, report)
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
    options: PreflightOptions,
    checks: Sequence[Check],
    places: Mapping[str, Path],
    *,
    to_drain: bool,
) -> Bundle:
    from clusterkit.cli.nodes.preflight_report import require
    from clusterkit.config.load import load_settings
    from clusterkit.preflight.targets import aim, gather
    from clusterkit.preflight.text import require_slurm

    settings = load_settings()
    spec = settings.cluster(options.cluster)
    for problem in settings.warnings_of(spec.name):
        console.warn(str(problem))
    target = aim(options, spec)
    if to_drain:
        require_slurm(target.job)
    require(places)
    with console.counting(len(target.job.hosts)) as on_reply:
        return gather(target, checks, on_reply=on_reply)


def _replayed(folder: Path) -> Bundle:
    from clusterkit.core.version import __version__
    from clusterkit.preflight.bundle_reader import read_bundle

    bundle = read_bundle(folder)
    if bundle.written_by != __version__:
        console.note(
            f"{folder} was written by clusterkit {bundle.written_by}, evaluated by {__version__}"
        )
    return bundle


def _words(flag: str, text: str | None) -> tuple[str, ...]:
    values = tuple(value for part in (text or "").split(",") if (value := part.strip()))
    if text is not None and not values:
        raise UserError(
            f"{flag} names no check",
            hint=f"such as {flag} GPU,IB001; `clusterkit explain checks` lists them",
        )
    return values


def _variables(pairs: Sequence[str]) -> dict[str, str]:
    from clusterkit.jobs.submit.request import parse_pairs

    problems: list[Problem] = []
    parsed = parse_pairs("--env", pairs, problems)
    if problems:
        raise UserError(problems=problems)
    return parsed


def _refuse_beside_replay(given: Mapping[str, Any]) -> None:
    fitting = {"replay", "select", "ignore", "strict"}
    if given.get("cluster") == os.environ.get(CLUSTER_VARIABLE):
        fitting.add("cluster")
    wrong = (name for name, value in given.items() if value is not None and name not in fitting)
    names = [f"--{name.replace('_', '-')}" for name in wrong]
    if names:
        raise UserError(
            f"--replay asks no node, so {', '.join(names)} has no meaning beside it",
            hint="leave it out, or leave --replay out",
        )
