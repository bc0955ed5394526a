"""`--sync DIR`: where a job starts in the copy that nodes get of a folder, and its script."""

from __future__ import annotations

import dataclasses
import os.path
from pathlib import PurePath

from clusterkit.core.errors import Problem, UserError
from clusterkit.core.model import ClusterKind, ClusterSpec, JobSpec, SyncPlan


def place_synced(
    job: JobSpec, cluster: ClusterSpec, workdir: str
) -> tuple[JobSpec, str, SyncPlan | None]:
    """Return the job with its script as the copy has it, its working directory, and the copy.

    A job that is submitted from somewhere in the folder starts there; from elsewhere, it starts at
    the top of the folder.

    Raises:
        UserError: the cluster needs no copy, or the script is not in the folder.
    """
    if job.sync is None:
        return job, workdir, None
    _check(job, cluster)
    folder = os.path.normpath(job.sync)
    here = workdir if PurePath(workdir).is_relative_to(folder) else folder
    script = os.path.normpath(os.path.join(workdir, job.script))  # noqa: PTH118 - pure, `..` as well
    if not PurePath(script).is_relative_to(folder):
        raise UserError(
            f"script {script} is not in {folder}, which is what the nodes get",
            hint="name a folder that has it: --sync DIR",
            key="sync",
        )
    inside = os.path.relpath(here, folder)
    plan = SyncPlan(
        folder=folder,
        workdir="" if inside == "." else inside,
        limit_mib=job.sync_limit_mib,
    )
    return dataclasses.replace(job, script=os.path.relpath(script, here)), here, plan


def _check(job: JobSpec, cluster: ClusterSpec) -> None:
    problems = []
    if cluster.kind is not ClusterKind.SSH or cluster.shared_filesystem:
        problems.append(
            Problem(
                message=f"--sync: the nodes of cluster {cluster.name} see your folder as it is",
                hint="leave it out"
                + (", or set `shared_filesystem: false`" * (cluster.kind is ClusterKind.SSH)),
                key="sync",
            )
        )
    if job.container or (job.image and cluster.container_runtime):
        problems.append(
            Problem(
                message="--sync brings a folder to the node, and not into an image",
                hint="leave out --sync or --container; `mounts:` shows folders of nodes to images",
                key="sync",
            )
        )
    if job.sync_limit_mib < 1:
        message = f"--sync-limit {job.sync_limit_mib}: must be at least 1 MiB"
        problems.append(Problem(message=message, key="sync_limit"))
    if problems:
        raise UserError(problems=problems)
