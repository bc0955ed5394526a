"""FS002: whether the folders that have to be shared are the same on all nodes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    Tier,
    missing,
    passed,
)
from clusterkit.preflight.checks.by_folder import usual
from clusterkit.preflight.probes.host.shared_folders import PROBE, Folder
from clusterkit.transport.probe import Missing, PreflightJob

_NETWORK = ("nfs", "lustre", "gpfs", "ceph", "beegfs", "wekafs")
"""File systems that number a file the same on all their clients; FUSE ones make numbers up."""

_LOCAL = ("ext", "xfs", "btrfs", "overlay", "tmpfs", "zfs")
"""Here another number shows another folder, and the same number shows nothing."""

ABOUT = About(
    what="The run folder is one and the same on all nodes, and so are the other folders.",
    why="Where each node has a folder of its own under the same name, results and checkpoints end"
    " up on the wrong disk, and nobody finds the job's state again.",
    how="A marker file is written into the first folder and looked for on every node; of the other"
    " folders the inode numbers are compared, by majority.",
    fix="Name a folder on a file system that all nodes mount: `run_dir:` of the cluster.",
    source="NFS, Lustre, GPFS and CephFS give a file one number for all clients (stat(2), st_ino)",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail nodes that do not see the marker; warn of folders that look like others."""
    job = evidence.job
    if not job.paths:
        yield None, Ruling(verdict=Verdict.SKIP, summary="no folder of the job is known")
        return
    if job.kind == "local" or len(job.hosts) < 2:
        yield None, Ruling(verdict=Verdict.SKIP, summary="a single machine")
        return
    inodes = usual(evidence, _inode)
    for node in evidence.nodes:
        facts = node.of(PROBE)
        yield node.name, missing(facts) if isinstance(facts, Missing) else _rule(facts, job, inodes)


def _rule(folders: tuple[Folder, ...], job: PreflightJob, inodes: Sequence[int | None]) -> Ruling:
    if any(folder.state != "ok" for folder in folders):
        return Ruling(verdict=Verdict.UNKNOWN, summary="not all folders could be looked into")
    if job.marker and folders and folders[0].marker != job.marker:
        seen = "does not see" if folders[0].marker is None else "sees another content of"
        return _other(Verdict.FAIL, job.paths[0], f"{seen} the file that was written there")
    for folder, path, most in zip(folders, job.paths, inodes, strict=False):
        if most is not None and _inode(folder) not in {None, most}:
            return _other(Verdict.WARN, path, "is not the folder that most nodes have")
    numbered = all(folder.kind.startswith(_NETWORK) and folder.inode for folder in folders)
    if not job.marker and not (numbered and None not in inodes):
        # This machine may not have the folder; local disks then leave nothing to go by.
        return Ruling(verdict=Verdict.UNKNOWN, summary="no marker could be written to look for")
    return passed("the job's folders are the same")


def _inode(folder: Folder) -> int | None:
    return folder.inode if folder.kind.startswith(_NETWORK + _LOCAL) else None


def _other(verdict: Verdict, path: str, what: str) -> Ruling:
    return Ruling(
        verdict=verdict,
        summary=f"{path} is not shared: {what}" if verdict is Verdict.FAIL else f"{path} {what}",
        hint="name a folder that all nodes mount from the same server",
        command=f"df {shlex.quote(path)}; ls -la {shlex.quote(path)}",
    )


CHECK = Check(
    id="FS002",
    name="fs-shared",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
