"""`clusterkit init`: write a first configuration from what this machine can tell."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.text import wrapped

if TYPE_CHECKING:
    from clusterkit.config.init import Found


@explained
def init(
    output: Path = Path("clusterkit.yaml"),
    login: str | None = None,
    hosts: str | None = None,
    force: bool = False,
    yes: bool = False,
    json: JsonFlag = False,
) -> None:
    """Write a commented clusterkit.yaml from what is found here: Slurm, GPUs, hostfiles.

    With --login, Slurm is looked for on that login node. With --hosts, the
    file begins with a cluster of these machines, without a scheduler.
    """
    from clusterkit.config.init import HOSTS_NAME, discover, run_command, starter_text

    if output.exists() and not force:
        raise UserError(
            f"{output} exists already",
            hint="replace it with --force, or write elsewhere with --output FILE",
        )
    named = _named(hosts) if hosts is not None else ()
    found = discover(run_command, cwd=Path.cwd()) if login is None else _on_login_node(login)
    found = dataclasses.replace(found, hosts=named)
    text = starter_text(found, folder=output.absolute().parent)
    console.note(*(line for text in _report(found) for line in wrapped(text, rest="  ")))
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
    then = "doctor" if login is None else f"nodes prepare --cluster {found.cluster_name}"
    then = f"preflight --cluster {HOSTS_NAME}" if named else then
    console.say(f"next: {following}, then clusterkit {then}")


def _named(hosts: str) -> tuple[str, ...]:
    """Return the hosts of a list, each once.

    Raises:
        UserError: it is no list of hosts, or names none.
    """
    named = tuple(dict.fromkeys(hostlist.expand(hosts, source="--hosts")))
    if not named:
        raise UserError("--hosts: the list is empty", hint="clusterkit init --hosts n[1-4]")
    return named


def _on_login_node(login: str) -> Found:
    """Return what the tools of a login node tell.

    Raises:
        UserError: there is no Slurm there.
    """
    from clusterkit.config.init import TIMEOUT_S, discover_slurm
    from clusterkit.transport.login import LoginNode

    node = LoginNode(login)
    found = discover_slurm(lambda argv: node.answer(argv, timeout_s=TIMEOUT_S))
    if not found.partitions:
        raise UserError(
            f"no Slurm answers on {login}" + (f": {found.no_sinfo}" if found.no_sinfo else ""),
            hint=f"log in and try `sinfo`: ssh {node.name}",
        )
    return dataclasses.replace(found, login=login)


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
    if found.login is None:
        yield from _of_this_machine(found)


def _of_this_machine(found: Found) -> Iterator[str]:
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
    if not found.hostfiles and not found.partitions and not found.hosts:
        yield "a cluster with Slurm, from here: clusterkit init --login USER@HOST --force"
        yield "machines over ssh: clusterkit init --hosts n[1-4] --force"
