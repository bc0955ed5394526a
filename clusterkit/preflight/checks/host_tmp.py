"""HOST011: whether /tmp has room and inodes left."""

# ruff: noqa: S108 - the folders are named in what is said, nothing is written

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.probes.host.disks import PROBE, Disks

_FAIL_KIB = 256 << 10
_FAIL_INODES = 1000
_WARN_KIB = 2 << 20
_WARN_PERCENT = 95

ABOUT = About(
    what="/tmp has room and inodes left.",
    why="Compilers (Triton, torch.compile, DeepSpeed's extensions), rendezvous files and logs go"
    " there. A node with a full disk fails when the job has long begun.",
    how="df -Pk /tmp and df -Pi /tmp on each node.",
    fix="Remove what old jobs have left; point TMPDIR elsewhere.",
    source="95 % as imbue-ai/cluster-health and oci-hpc have it, only as a warning: a large disk"
    " has room left then. Failing is by what is left: 256 MiB or 1,000 inodes",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail where nothing more can be written."""
    return each(evidence, PROBE, _rule)


def _rule(disks: Disks) -> Ruling:
    tmp = disks.tmp
    if tmp is None:
        return _bad(Verdict.FAIL, "there is no /tmp", "")
    inodes = tmp.inodes_available
    evidence = f"{tmp.available_kib >> 10} MiB free, {tmp.used_percent:.0f} % used on {tmp.mount}"
    if tmp.available_kib < _FAIL_KIB:
        return _bad(Verdict.FAIL, "/tmp is full", evidence)
    if inodes is not None and inodes < _FAIL_INODES:
        return _bad(Verdict.FAIL, "/tmp has no inodes left", f"{inodes} of {tmp.inodes}")
    crowded = inodes is not None and inodes * 100 < (tmp.inodes or 0) * (100 - _WARN_PERCENT)
    if tmp.available_kib < _WARN_KIB or tmp.used_percent >= _WARN_PERCENT:
        return _bad(Verdict.WARN, "/tmp is nearly full", evidence)
    if crowded:
        return _bad(Verdict.WARN, "/tmp has few inodes left", f"{inodes} of {tmp.inodes}")
    return passed("/tmp has room")


def _bad(verdict: Verdict, summary: str, evidence: str) -> Ruling:
    return Ruling(
        verdict=verdict,
        summary=summary,
        evidence=evidence,
        hint="remove what old jobs have left, or set TMPDIR to another folder",
        command="df -h /tmp; df -i /tmp; du -xsh /tmp/* | sort -h | tail",
    )


CHECK = Check(id="HOST011", name="host-tmp", about=ABOUT, probes=(PROBE,), judge=judge)
