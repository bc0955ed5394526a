"""Start any Python function over ssh, as submitit has pickled it."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from submitit.core.utils import JobPaths

from clusterkit.config.load import load_settings
from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import ClusterKind, ClusterSpec
from clusterkit.executors.base import RefusalError
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.ssh import start
from clusterkit.executors.ssh.agent_files import job_id_of
from clusterkit.executors.ssh.ask import NodesBusy
from clusterkit.executors.ssh.layout import SshLayout
from clusterkit.executors.submitit_job import RUNS, RunJob

_FUNCTION = "clusterkit.executors.ssh.function"


def start_function(folder: Path, parameters: Mapping[str, Any], nodes: int) -> RunJob:
    """Start the function that submitit has pickled in `folder`, on nodes with free slots.

    Raises:
        UserError: there are too few nodes, or they share no file system.
        RefusalError: a node did not take it.
    """
    if parameters.get("tasks_per_node", 1) != 1:
        raise UserError("an ssh job has one task per node", hint="tasks_per_node=1")
    cluster = _cluster(parameters.get("cluster"))
    if not cluster.shared_filesystem:
        raise UserError(
            f"the machines of cluster {cluster.name} share no file system, and functions need one",
            hint="submit a script instead: clusterkit submit --sync DIR; docs/how-to/ssh.md",
        )
    hosts = _hosts(cluster, parameters.get("hosts"), nodes)
    busy: set[str] = set()
    while True:
        names = tuple(name for name in hosts if name not in busy)[:nodes]
        try:
            return _start_on(names, cluster, folder, parameters)
        except NodesBusy as error:
            busy |= error.nodes
            if len(hosts) - len(busy) < nodes:
                raise


def _hosts(cluster: ClusterSpec, listed: str | None, nodes: int) -> tuple[str, ...]:
    named = hostlist.expand(listed) if listed else [host.name for host in cluster.hosts]
    names = tuple(dict.fromkeys(named))
    if len(names) < nodes:
        raise UserError(
            f"{nodes} nodes asked for, but there are {len(names)}",
            hint=f"nodes={len(names)}",
        )
    return names


def _start_on(
    names: tuple[str, ...], cluster: ClusterSpec, folder: Path, parameters: Mapping[str, Any]
) -> RunJob:
    label = str(parameters.get("name", "function"))
    runs = JobPaths.get_first_id_independent_folder(folder) / RUNS
    files.create_folder(runs)
    run = runfolder.create(dataclasses.replace(cluster, run_dir=str(runs)), label)
    layout = _layout(names, cluster, run, folder, parameters)
    runfolder.write_submission(
        run,
        Submission(
            run_id=run.run_id,
            name=label,
            cluster=cluster.name,
            kind=ClusterKind.SSH,
            framework="python",
            nodes=len(names),
            tasks=len(names),
            submitted_at=time.time(),
            time_limit_s=layout.time_limit_s,
            job_id=layout.job_id,
        ),
    )
    try:
        start.start(run, layout)
    except RefusalError:
        files.remove_tree(run.path)
        raise
    return RunJob(folder=folder, job_id=layout.job_id, tasks=list(range(len(names))))


def _layout(
    names: tuple[str, ...],
    cluster: ClusterSpec,
    run: RunFolder,
    folder: Path,
    parameters: Mapping[str, Any],
) -> SshLayout:
    slots = int(parameters.get("gpus_per_node", 1))
    minutes = parameters.get("timeout_min")
    logs = JobPaths(folder, job_id=job_id_of(run)).folder  # may have %j in it
    files.create_folder(logs)
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    return SshLayout(
        job_id=job_id_of(run),
        names=names,
        slots=(slots,) * len(names),
        tasks=len(names),
        ports=cluster.port_range,
        time_limit_s=None if minutes is None else int(minutes * 60),
        command=(sys.executable, "-u", "-m", _FUNCTION, str(folder.absolute())),
        ours=False,
        environment=kept,
        workdir=str(Path.cwd()),
        logs=str(logs),
        cluster=cluster,
    )


def _cluster(name: str | None) -> ClusterSpec:
    """Return the cluster of this name; else the default one, else the only one of kind ssh."""
    settings = load_settings()
    of_ssh = [key for key, spec in settings.clusters.items() if spec.kind.lists_hosts]
    if name is None and settings.default_cluster not in of_ssh and len(of_ssh) == 1:
        (name,) = of_ssh
    cluster = settings.cluster(name)
    if not cluster.kind.lists_hosts:
        raise UserError(
            f"cluster {cluster.name} is of kind {cluster.kind.value}",
            hint=f"ssh_cluster={of_ssh[0]!r}"
            if of_ssh
            else "describe one of kind ssh in clusterkit.yaml",
        )
    return cluster
