"""`clusterkit preflight`: prove that every node is healthy, and name the one that is not."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import CLUSTER_VARIABLE, explained
from clusterkit.cli.frame.job_options import takes_rows
from clusterkit.cli.frame.main import EXIT_COULD_NOT, EXIT_FINDINGS
from clusterkit.core.errors import Problem, UserError, choices_hint
from clusterkit.core.version import __version__
from clusterkit.launch.option_rows import rows_of
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
    spool: Path | None = None,
    itself: bool = False,
    purpose: str | None = None,
    budget: float | None = None,
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
        "--spool": spool,
    }
    places = {flag: path for flag, path in outputs.items() if path is not None}
    _require_itself(itself, {"--for": purpose, "--budget": budget})
    if itself:
        given = {**options, "drain_command": drain_command or None}
        _refuse_beside("--self asks this machine alone", given, _ITSELF)
        chosen = _of_one_machine(selected, ignored, purpose)
        output.require(places)
        bundle = _asked_itself(chosen, budget, options.get("gpus_per_node"))
    elif "replay" in options:
        given = {**options, "save": save, "prometheus": prometheus}
        _refuse_beside("--replay asks no node", given, _REPLAY)
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
    elif itself and not verbose:
        output.print_reason(report)
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


def _require_itself(itself: bool, flags: Mapping[str, object]) -> None:
    for flag, value in flags.items():
        if value is not None and not itself:
            raise UserError(f"{flag} goes with --self", hint=f"add --self, or leave {flag} out")


_REPLAY = frozenset({"replay", "select", "ignore", "strict"})
_ITSELF = frozenset({"select", "ignore", "strict", "gpus_per_node"})


def _refuse_beside(why: str, given: Mapping[str, Any], fitting: Set[str]) -> None:
    """Refuse flags that do not go with another one: `why` begins with that."""
    if given.get("cluster") == os.environ.get(CLUSTER_VARIABLE):
        fitting = fitting | {"cluster"}
    wrong = (name for name, value in given.items() if value is not None and name not in fitting)
    names = [f"--{name.replace('_', '-')}" for name in wrong]
    if names:
        raise UserError(
            f"{why}, so {', '.join(names)} has no meaning beside it",
            hint=f"leave it out, or leave {why.split(maxsplit=1)[0]} out",
        )


_WHILE_JOBS_RUN = frozenset({"GPU020", "HOST010", "HOST011"})
"""Checks of what a job uses: GPUs, /dev/shm and /tmp."""
_PURPOSES = {"prolog": frozenset[str](), "epilog": frozenset[str](), "healthcheck": _WHILE_JOBS_RUN}
_BUDGET_S = 5.0


def _of_one_machine(
    select: Sequence[str], ignore: Sequence[str], purpose: str | None
) -> Sequence[Check]:
    """Return the checks that a machine can evaluate of itself at that time."""
    from clusterkit.preflight.checks.gpu_driver import gpu_count
    from clusterkit.preflight.collect import checks_to_ask
    from clusterkit.preflight.on_node import ELSEWHERE, checks_of_one_node

    checks = checks_to_ask(select, ignore, network=False, without=ELSEWHERE)
    if purpose is not None and purpose not in _PURPOSES:
        raise UserError(f"--for {purpose}: unknown", hint=choices_hint(purpose, _PURPOSES))
    alone = {check.id for check in (*checks_of_one_node(checks), gpu_count)}
    alone -= _PURPOSES[purpose or "epilog"]
    left = tuple(check for check in checks if check.id in alone)
    if not left:
        raise UserError(
            "no check is left that a machine can evaluate of itself",
            hint="such as --self --select GPU,IB,HOST",
        )
    return left


def _asked_itself(checks: Sequence[Check], budget: float | None, gpus: int | None) -> Bundle:
    from clusterkit.preflight.on_node import ask_here
    from clusterkit.transport.probe import PreflightJob

    if budget is not None and not budget > 0:
        raise UserError(f"--budget {budget:g}: no time at all", hint=f"--budget {_BUDGET_S:g}")
    here = socket.gethostname().partition(".")[0]
    uses = True if gpus else None
    job = PreflightJob(hosts=(here,), kind="local", gpus_per_node=gpus, uses_gpus=uses)
    return ask_here(job, checks, within_s=budget or _BUDGET_S)
