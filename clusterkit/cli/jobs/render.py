"""`clusterkit render`: write the files that would run."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.job_options import (
    CONTEXT_SETTINGS,
    request_of,
    takes_job_options,
    warn_of_script,
)
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterKind

if TYPE_CHECKING:
    from clusterkit.core.model import LaunchPlan
    from clusterkit.launch.array.spec import Sweep

__all__ = ["CONTEXT_SETTINGS", "render"]


@takes_job_options(starts=False)
@explained
def render(
    options: Mapping[str, Any],
    output: Path = Path("rendered"),
    only: list[str] | None = None,
    service: str | None = None,
    stdout: bool = False,
    diff: bool = False,
    json: JsonFlag = False,
) -> None:
    """Write the sbatch script, node script, hostfile and compose file of a job.

    sbatch, bash and docker compose run them with no clusterkit on the nodes.
    """
    from clusterkit.launch.render import KINDS, check_kinds
    from clusterkit.launch.render import render as render_files

    stdout = stdout or str(output) == "-"
    kinds = check_kinds(only or ())
    kind = options.get("script")
    if kind in KINDS and not Path(kind).exists():
        raise _not_a_script(kind, options.get("args") or ())
    named = bool(kind or options.get("job"))
    if not named and [*kinds] == ["config"]:
        options = {**options, "script": "train.py"}  # no configuration depends on it
    request = request_of(options, verb="render")
    sweep = request.sweep()
    if sweep is not None:
        if stdout or diff or service:
            flag = "--stdout" if stdout else "--diff" if diff else "--for"
            raise UserError(
                f"{flag} is for one job, and this is an array",
                hint="--output DIR writes each job into a folder of its own",
            )
        plans = request.plans(sweep)
        warn_of_script(plans[0])
        _render_array(sweep, plans, kinds, output=None if json else output)
        return
    plan = request.plan()
    warn_of_script(plan)
    _warn_if_missing(plan, named=named and service is None)
    rendered = render_files(plan, only=kinds, service=service)
    if diff:
        _diff(rendered, output, as_json=json)
    elif json:
        # Without a script the plan is that of a placeholder.
        console.json_document({"plan": plan if named else None, "files": rendered})
    elif stdout:
        for file in rendered:
            sys.stdout.write(file.text)
    else:
        _write(rendered, output)
    for kind in kinds if only else ():
        _explain_absence(kind, plan, rendered, service)


def _warn_if_missing(plan: LaunchPlan, *, named: bool) -> None:
    """Warn where a script that the user has `named` is not where the job looks for it."""
    if named and plan.script_kind.is_file and not (Path(plan.workdir) / plan.script).is_file():
        console.warn(f"no {plan.script} here; the job looks for it in {plan.workdir}")


def _not_a_script(kind: str, args: Sequence[str]) -> UserError:
    rest = args or (() if kind == "config" else ("SCRIPT",))
    return UserError(
        f"{kind} is a kind of file, not a script",
        hint=shlex.join(["clusterkit", "render", "--only", kind, *rest]),
        key="script",
    )


def _render_array(
    sweep: Sweep, plans: Sequence[LaunchPlan], kinds: Sequence[str], *, output: Path | None
) -> None:
    """Write each job into `output/INDEX`; without `output`, print all of them as JSON."""
    from clusterkit.launch.render import render as render_files

    documents = []
    for element, plan in zip(sweep.elements, plans, strict=True):
        rendered = render_files(plan, only=kinds)
        if output is None:
            about = {"index": element.index, "values": element.values}
            documents.append({**about, "plan": plan, "files": rendered})
        else:
            _write(rendered, output / str(element.index))
    if output is None:
        console.json_document({"elements": documents})


def _write(rendered: Any, output: Path) -> None:
    from clusterkit.launch.render import write_files

    for path in write_files(rendered, output):
        console.say(str(path))


def _diff(rendered: Any, output: Path, *, as_json: bool) -> None:
    changes = {}
    for file in rendered:
        path = output / file.name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = difflib.unified_diff(
            old.splitlines(keepends=True),
            file.text.splitlines(keepends=True),
            fromfile=str(path),
            tofile=f"{path} (rendered)",
        )
        changes[file.name] = "".join(lines)
    changes = {name: text for name, text in changes.items() if text}
    if as_json:
        console.json_document({"changed": sorted(changes), "diff": changes})
    else:
        for text in changes.values():
            console.say(text.rstrip("\n"))
    if changes:
        raise typer.Exit(EXIT_FINDINGS)


def _explain_absence(kind: str, plan: Any, rendered: Any, service: str | None) -> None:
    names = {file.name for file in rendered}
    if service is not None and kind in {"sbatch", "hostfile", "compose"}:
        console.note(f"no {kind} for {service}, which runs node.sh\nhint: --only node")
        return
    if kind == "sbatch" and "job.sbatch" not in names:
        console.note(
            f"no sbatch script: cluster {plan.cluster.name} is {plan.cluster.kind}\n"
            "hint: --cluster NAME of a Slurm cluster"
        )
    if kind == "hostfile" and "hostfile" not in names:
        console.note(
            f"no hostfile: the nodes of a {plan.cluster.kind} cluster are known in the job only\n"
            "hint: clusterkit hostfile --hostlist NODES --slots N makes one by hand"
        )
    if kind == "compose" and "compose.yaml" in names and plan.nodes > 1:
        by_host = "\nhint: --container compose writes a file for each host"
        console.note(
            f"compose.yaml runs the job on one host, not on {plan.nodes} nodes"
            + by_host * (plan.cluster.kind is not ClusterKind.SLURM)
        )
    if kind == "config" and "ds_config.json" not in names:
        console.note("no configuration: ask for one with --ds-preset NAME")
