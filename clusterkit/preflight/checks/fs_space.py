"""FS005: whether the run folder has room and inodes left."""

from __future__ import annotations

import shlex

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.probes.host.shared_folders import PROBE, Folder

_FAIL_KIB = 1 << 20
_WARN_KIB = 50 << 20
_WARN_PERCENT = 95
_FAIL_INODES = 1000

ABOUT = About(
    what="The file system of the run folder has room and inodes left.",
    why="Logs, state and checkpoints go there; a checkpoint that does not fit is lost, with the"
    " hours since the one before it.",
    how="df -Pk and df -Pi of the run folder on each node.",
    fix="Remove old runs and checkpoints, or name another folder: `run_dir:` of the cluster. df"
    " does not show quotas: quota -s, or lfs quota -h on Lustre.",
    source="95 % as imbue-ai/cluster-health and oci-hpc have it, only as a warning and where less"
    " than 50 GiB are left: a checkpoint of a 7B model with its optimizer has 84 GB",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail where nothing more fits."""
    paths = evidence.job.paths
    if not paths:
        yield None, Ruling(verdict=Verdict.SKIP, summary="no folder of the job is known")
    else:
        yield from each(evidence, PROBE, lambda folders: _rule(folders, paths[0]))


def _rule(folders: tuple[Folder, ...], path: str) -> Ruling:
    volume = folders[0].volume if folders else None
    if volume is None:
        return Ruling(verdict=Verdict.UNKNOWN, summary=f"space of {path} is not known")
    inodes = volume.inodes_available
    evidence = f"{volume.available_kib >> 20} GiB free, {volume.used_percent:.0f} % used"
    if volume.available_kib < _FAIL_KIB:
        return _bad(Verdict.FAIL, f"{path} is full", evidence, path)
    if inodes is not None and inodes < _FAIL_INODES:
        return _bad(Verdict.FAIL, f"{path} has no inodes left", f"{inodes} inodes", path)
    if volume.used_percent >= _WARN_PERCENT and volume.available_kib < _WARN_KIB:
        return _bad(Verdict.WARN, f"{path} is nearly full", evidence, path)
    return passed("the run folder has room")


def _bad(verdict: Verdict, summary: str, evidence: str, path: str) -> Ruling:
    return Ruling(
        verdict=verdict,
        summary=summary,
        evidence=evidence,
        hint="remove old runs and checkpoints, or name another `run_dir:`",
        command=f"df -h {shlex.quote(path)}; df -i {shlex.quote(path)}",
    )


CHECK = Check(id="FS005", name="fs-space", about=ABOUT, probes=(PROBE,), judge=judge)
