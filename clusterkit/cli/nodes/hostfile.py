"""`clusterkit hostfile`: the hosts of a file, hostlist, cluster or allocation, for any launcher."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained, option
from clusterkit.core.errors import Problem, UserError
from clusterkit.core.hosts.hostfile import MAX_SLOTS, Format, to_format
from clusterkit.core.hosts.hostfile_reader import parse
from clusterkit.core.hosts.hostfile_writer import write
from clusterkit.core.hosts.hostlist import expand
from clusterkit.core.hosts.slots import filter_hosts, hosts_of_allocation
from clusterkit.core.model import ClusterSpec, Host

Found = tuple[tuple[Host, ...], tuple[Problem, ...]]
"""Hosts, and warnings about where they come from."""


@explained
def hostfile(
    file: str | None = None,
    format_: str = "deepspeed",
    cluster: str | None = None,
    hostlist: str | None = None,
    slots: Annotated[
        int | None,
        option("--slots", "Slots of every host whose own are unknown.", "N", min=1, max=MAX_SLOTS),
    ] = None,
    include: str | None = None,
    exclude: str | None = None,
    json: JsonFlag = False,
) -> None:
    """Write a hostfile for any launcher, from another one, a hostlist, a cluster or Slurm.

    Without FILE, --hostlist and --cluster, the Slurm allocation it runs in.

    What is written reads back as exactly the same hosts, or is refused.
    """
    target = to_format(format_)
    hosts, warnings = _find(file, hostlist, cluster, slots=slots, target=target)
    hosts, also = filter_hosts(hosts, include, exclude)
    text = write(hosts, target, slots)
    warnings += also
    for problem in warnings:
        console.warn(str(problem))
    if json:
        console.json_document(
            {"format": target, "hosts": hosts, "text": text, "warnings": warnings}
        )
    else:
        sys.stdout.write(text)


def _find(
    file: str | None,
    hostlist: str | None,
    cluster: str | None,
    *,
    slots: int | None,
    target: Format,
) -> Found:
    sources = {"FILE": file, "--hostlist": hostlist, "--cluster": cluster}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} exclude each other", hint="give one of them")
    if file is not None:
        return _of_file(file, slots)
    if hostlist is not None:
        expand(hostlist, source="--hostlist")  # a hostfile may hold more than a hostlist
        parsed = parse(hostlist, source="--hostlist", format=Format.HOSTLIST)
        return _with_slots(parsed.hosts, slots), ()
    if cluster is not None:
        hosts, warnings = _of_cluster(cluster, slots, target)
    else:
        hosts, warnings = _of_allocation(slots), ()
    if not target.says("slots"):
        # No file said these slots: who asks for names gets names, and nothing is lost.
        hosts = tuple(Host(name=host.name, slots=slots) for host in hosts)
    return hosts, warnings


def _of_file(file: str, slots: int | None) -> Found:
    from clusterkit.config.document import read_text

    source = "<stdin>" if file == "-" else file
    path = Path("/dev/stdin" if file == "-" else file)
    if {*"[,"} & {*file} and not path.exists():
        raise UserError(
            f"there is no file {file}", hint=f"a hostlist: --hostlist {shlex.quote(file)}"
        )
    found = parse(read_text(path, source=source), source=source)
    return _with_slots(found.hosts, slots), found.warnings


def _of_allocation(slots: int | None) -> tuple[Host, ...]:
    hosts = hosts_of_allocation(os.environ, slots)
    if hosts is None:
        raise UserError(
            "there is nothing to make a hostfile of",
            hint="give FILE, - or --hostlist LIST or --cluster NAME, or run inside a Slurm job",
        )
    return hosts


def _of_cluster(name: str, slots: int | None, target: Format) -> Found:
    from clusterkit.config.load import load_settings

    settings = load_settings(cluster=name)
    spec = settings.cluster(name)
    odd = settings.warnings + settings.warnings_of(name)
    default = slots or spec.gpus_per_node
    if spec.kind.shares_machine:
        return (Host(name="localhost", slots=default),), odd
    if spec.kind.lists_hosts:
        hosts, warnings = _logged_in(spec, target)
        return _with_slots(hosts, default), odd + warnings
    allocated = hosts_of_allocation(os.environ, slots)
    if allocated is None:
        raise UserError(
            f"the nodes of a job on cluster {name!r} are known only inside the job",
            hint="run this inside the allocation, or give --hostlist LIST",
        )
    return _with_slots(allocated, default), odd


def _logged_in(spec: ClusterSpec, target: Format) -> Found:
    """Return the hosts of an ssh cluster with its user and port, as far as `target` has them."""
    hosts = tuple(
        dataclasses.replace(
            host,
            user=(host.user or spec.user) if target.says("user") else host.user,
            port=(host.port or spec.port) if target.says("port") else host.port,
        )
        for host in spec.hosts
    )
    lost = []
    if spec.user is not None and not target.says("user"):
        lost.append(f"user {spec.user}")
    if spec.port is not None and not target.says("port"):
        lost.append(f"port {spec.port}")
    if not lost or not target.says("slots"):
        return hosts, ()
    message = f"{target.tool} cannot say the {' and '.join(lost)} of cluster {spec.name!r}"
    return hosts, (Problem(message=message, hint="put it in ~/.ssh/config"),)


def _with_slots(hosts: Sequence[Host], slots: int | None) -> tuple[Host, ...]:
    return tuple(
        dataclasses.replace(host, slots=slots) if host.slots is None else host for host in hosts
    )
