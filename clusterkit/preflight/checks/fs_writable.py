"""FS003: whether the job can write into its run folder from every node."""

from __future__ import annotations

import shlex

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.probes.host.shared_folders import PROBE, Folder

ABOUT = About(
    what="The run folder can be written from every node.",
    why="Each node writes its log, its state and its result there; where it cannot, the job looks"
    " as if it had vanished. Working directory and data may well be read-only.",
    how="access(2) on each node: the mode bits, and whether the mount is read-only. Nothing is"
    " written.",
    fix="Mend owner and mode, or mount it for writing; NFS servers export read-only by default.",
    source="access(2); exports(5)",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail nodes that cannot write."""
    paths = evidence.job.paths
    if not paths:
        yield None, Ruling(verdict=Verdict.SKIP, summary="no folder of the job is known")
    else:
        yield from each(evidence, PROBE, lambda folders: _rule(folders, paths[0]))


def _rule(folders: tuple[Folder, ...], path: str) -> Ruling | None:
    run = folders[0] if folders else None
    if run is None or run.state != "ok":
        return Ruling(verdict=Verdict.UNKNOWN, summary=f"{path} could not be looked into")
    if run.writable:
        return passed("the run folder can be written")
    read_only = "ro" in run.options
    return Ruling(
        verdict=Verdict.FAIL,
        summary=f"{path} is mounted read-only" if read_only else f"{path} may not be written",
        evidence=" ".join((run.kind, ",".join(sorted(run.options)))).strip(),
        hint="mount it for writing" if read_only else "look at its owner and mode",
        command=f"ls -ld {shlex.quote(path)}; id; findmnt -T {shlex.quote(path)}",
    )


CHECK = Check(id="FS003", name="fs-writable", about=ABOUT, probes=(PROBE,), judge=judge)
