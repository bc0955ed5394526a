"""`clusterkit init`: write a first configuration from what this machine can tell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.core import files
from clusterkit.core.errors import UserError

if TYPE_CHECKING:
    from clusterkit.config.init import Found


@explained
def init(
    output: Path = Path("clusterkit.yaml"),
    force: bool = False,
    yes: bool = False,
    json: JsonFlag = False,
) -> None:
    """Write a commented clusterkit.yaml from what is found here: Slurm, GPUs, hostfiles."""
    from clusterkit.config.init import discover, run_command, starter_text

    if output.exists() and not force:
        raise UserError(
            f"{output} exists already",
            hint="replace it with --force, or write elsewhere with --output FILE",
        )
    found = discover(run_command, cwd=Path.cwd())
    text = starter_text(found, folder=output.absolute().parent)
    console.note(*_report(found))
    if not (yes or json) and sys.stdin.isatty() and sys.stdout.isatty():
        console.note("")
        console.say(text)
        typer.confirm(f"Write {output}?", default=True, abort=True, err=True)
    files.write_text(output, text, mode=files.output())
    following = (
        "clusterkit config show"
        if output.name == "clusterkit.yaml"
        else (f"clusterkit --config-file {output} config show")
    )
    if json:
        console.json_document({"path": output, "found": found, "next": following})
        return
    console.say(f"wrote {output}")
    console.say(f"next: {following}, then clusterkit doctor")


def _report(found: Found) -> Iterator[str]:
    if found.partitions:
        names = ", ".join(partition.name for partition in found.partitions)
        yield f"found Slurm cluster {found.cluster_name!r} with partitions: {names}"
        if found.no_sinfo:
            yield f"sinfo does not tell of nodes ({found.no_sinfo}): look at gpus_per_node yourself"
    elif found.no_sinfo:
        yield f"found no Slurm that answers (sinfo: {found.no_sinfo})"
    else:
        yield "found no Slurm (sinfo is missing, or lists no partition)"
    yield (
        f"found {len(found.gpus)} GPUs in this machine"
        if found.gpus
        else ("found no GPUs in this machine (nvidia-smi is missing or lists none)")
    )
    if found.platform:
        type_ = f", instance type {found.instance_type}" if found.instance_type else ""
        yield f"found platform {found.platform.name} ({found.platform.sign}){type_}"
    elif found.platforms:
        yield f"found a cloud without a fabric; it has {', '.join(found.platforms)}"
    for path, hosts in found.hostfiles.items():
        yield f"found hostfile {path} with {len(hosts)} hosts"
    for reason in found.left_out:
        yield f"left out a hostfile: {reason}"
    if not found.hostfiles:
        yield "found no hostfile in ./hostfile, ./hostfiles/, /job or /etc"
