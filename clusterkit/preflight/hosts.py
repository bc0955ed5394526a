"""The hosts that a preflight asks: named, of a file, of a cluster, an allocation or a partition."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from clusterkit.core import ownership
from clusterkit.core.commands import run_command
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.hosts.hostfile_reader import parse
from clusterkit.core.hosts.slots import hosts_of_allocation
from clusterkit.core.model import ClusterSpec, Host
from clusterkit.preflight.request import PreflightOptions
from clusterkit.transport.slurm_nodes import asleep_among, partition_nodes

LOCALHOST = "localhost"


def hosts_of(options: PreflightOptions, cluster: ClusterSpec, via: str) -> tuple[Host, ...]:
    """Return the hosts that `options` name, else those of `cluster`, each once.

    Raises:
        UserError: there are none, fewer than wanted, or more than `via` can ask.
        RemoteError: Slurm does not say which nodes there are.
    """
    given = [flag for flag in (options.hosts, options.hostfile) if flag is not None]
    if len(given) > 1:
        raise UserError("--hosts and --hostfile both say which nodes", hint="keep one of them")
    if given:
        hosts = tuple({host.name: host for host in _named(options, cluster)}.values())
        if via == "local" and len(hosts) > 1:
            raise UserError(
                f"--via local looks at this machine only, and {len(hosts)} hosts are named",
                hint="--via ssh or --via srun asks them",
            )
    elif via == "local":
        hosts = (Host(name=LOCALHOST),)
    else:
        hosts = tuple({host.name: host for host in _of_cluster(cluster)}.values())
    if options.nodes is None:
        return hosts
    if not 1 <= options.nodes <= len(hosts):
        raise UserError(
            f"--nodes {options.nodes}: there are {len(hosts)}: "
            f"{hostlist.fold(host.name for host in hosts)}",
            hint=_how_many(len(hosts)),
        )
    if not given and cluster.kind.scheduled:
        asleep = asleep_among([host.name for host in hosts])
        hosts = tuple(sorted(hosts, key=lambda host: host.name in asleep))
    return hosts[: options.nodes]


def _named(options: PreflightOptions, cluster: ClusterSpec) -> tuple[Host, ...]:
    if options.hostfile is not None:
        return _of_file(Path(options.hostfile))
    known = {host.name: host for host in cluster.hosts}
    names = hostlist.expand(options.hosts or "", source="--hosts")
    if not names:
        raise UserError("--hosts names no host", hint="such as --hosts n[1-4]")
    return tuple(known.get(name, Host(name=name)) for name in names)


def _of_file(file: Path) -> tuple[Host, ...]:
    from clusterkit.config.document import (  # noqa: PLC0415 - YAML is seldom needed here
        read_own_text,
        read_text,
    )

    if str(file) == "-":
        source, text = "<stdin>", read_text(Path("/dev/stdin"), source="<stdin>")
    else:
        # It says where to log in, and so is no one else's to write.
        hint = f"if you trust it, hand it over yourself: --hostfile - < {shlex.quote(str(file))}"
        use, most = "log in to what it lists", ownership.LARGEST
        source, text = str(file), read_own_text(file, use=use, hint=hint, most=most)
    if not text.strip():
        raise UserError(f"{source} is empty: no hosts", hint="one host per line, as n1 slots=8")
    return parse(text, source=source).hosts


def _of_cluster(cluster: ClusterSpec) -> tuple[Host, ...]:
    if cluster.kind.shares_machine:
        return (Host(name=LOCALHOST),)
    if cluster.kind.lists_hosts:
        if cluster.hosts:
            return cluster.hosts
        raise UserError(
            f"cluster {cluster.name} names no hosts",
            hint="set hosts: or hostfile: in clusterkit.yaml, or name them with --hosts",
        )
    allocated = hosts_of_allocation(os.environ)
    return allocated if allocated is not None else of_partition(cluster.partition)


def of_partition(partition: str | None) -> tuple[Host, ...]:
    """Return the nodes of a partition of Slurm, or of its default one; all where there is none.

    Raises:
        RemoteError: Slurm does not answer.
    """
    arguments = ["-p", partition] if partition else []
    answer = run_command(["sinfo", "-h", "-N", *arguments, "-o", "%N|%P"])
    if answer.code:
        raise RemoteError(
            f"Slurm does not say which nodes there are: {answer.errors.strip()}",
            hint="name them: --hosts n[1-4] --via ssh",
        )
    rows = [row.split("|", 1) for row in answer.output.splitlines() if "|" in row]
    if partition is None and any(name.endswith("*") for _, name in rows):
        rows = [row for row in rows if row[1].endswith("*")]
        partition = rows[0][1].strip().rstrip("*")
    names = (*(name.strip() for name, _ in rows), *partition_nodes(partition))
    return tuple(Host(name=name) for name in dict.fromkeys(names))


def _how_many(there_are: int) -> str:
    if there_are == 0:
        return "name them: --hosts n[1-4]"
    numbers = "--nodes 1" if there_are == 1 else f"--nodes 1 to --nodes {there_are}"
    return f"{numbers}, or name others with --hosts"
