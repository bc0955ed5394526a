"""FS001: whether the job's folders are there and answer."""

from __future__ import annotations

import shlex

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.probes.host.shared_folders import HANG_S, PROBE, Folder

ABOUT = About(
    what="The run folder, the working directory and the data of the job are there on every node,"
    " and answer.",
    why="A process that touches a dead network file system cannot even be killed: the rank hangs,"
    " then the job, then the node.",
    how=f"One stat of each folder on each node, given up on after {HANG_S} s and not waited for.",
    fix="Mount what is missing; on a hung mount look at the server and the network, then"
    " umount -f -l and mount it again (root).",
    source="leptonai/gpud checks NFS mounts under 5 s; nfs(5)",
)

_SAYS = {
    "hung": ("hangs", "the file server or the way to it is dead", "mount | grep nfs; dmesg | tail"),
    "absent": ("is not there", "mount it, or create it where all nodes see it", "ls -ld {path}"),
    "denied": ("is no folder that you may enter", "look at its owner and mode", "ls -ld {path}"),
}


def judge(evidence: Evidence) -> Judgement:
    """Fail nodes on which a folder hangs or is absent."""
    paths = evidence.job.paths
    if not paths:
        yield None, Ruling(verdict=Verdict.SKIP, summary="no folder of the job is known")
    else:
        yield from each(evidence, PROBE, lambda folders: _rule(folders, paths))


def _rule(folders: tuple[Folder, ...], paths: tuple[str, ...]) -> Ruling:
    for folder, path in zip(folders, paths, strict=False):
        if folder.state in _SAYS:
            what, hint, command = _SAYS[folder.state]
            return Ruling(
                verdict=Verdict.FAIL,
                summary=f"{path} {what}",
                hint=hint,
                command=command.format(path=shlex.quote(path)),
            )
    return passed("the job's folders are there")


CHECK = Check(id="FS001", name="fs-alive", about=ABOUT, probes=(PROBE,), judge=judge)
