"""HOST010: whether /dev/shm is there, large enough and not full."""

# ruff: noqa: S108 - the folders are named in what is said, nothing is written

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.probes.host.disks import PROBE, Disks
from clusterkit.preflight.probes.host.volumes import Volume

_NEEDED_KIB = 64 << 10
"""Docker's default size, in which NCCL is known to fail."""

_ADVISED_KIB = 1 << 20
_FULL_PERCENT = 90

ABOUT = About(
    what="/dev/shm is mounted, has at least 1 GiB, and is not full.",
    why="Ranks of one node exchange data there, and data loaders hand over batches. Full, it ends"
    " in `Bus error` or NCCL's `No space left on device`, often hours later.",
    how="df -Pk /dev/shm on each node. Files of jobs that were killed stay there until removed.",
    fix="Remove the leftovers of dead jobs; give containers --shm-size or --ipc=host.",
    source="NCCL documentation, troubleshooting, shared memory; 64 MiB is Docker's default",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail where it is full or absent, warn where it is small."""
    return each(evidence, PROBE, _rule)


def _rule(disks: Disks) -> Ruling:
    shm = disks.shm
    if shm is None:
        return _bad(Verdict.FAIL, "there is no /dev/shm", "", "mount a tmpfs there")
    return _fault(shm) or passed("/dev/shm is large enough and free")


def _fault(shm: Volume) -> Ruling | None:
    evidence = f"{shm.available_kib >> 10} MiB free of {shm.size_kib >> 10} MiB"
    leftovers = "remove what dead jobs have left there"
    if shm.size_kib <= _NEEDED_KIB:
        hint = "a container needs --shm-size=16g or --ipc=host"
        return _bad(Verdict.FAIL, "/dev/shm is too small", evidence, hint)
    if shm.available_kib < _NEEDED_KIB or shm.inodes_available == 0:
        return _bad(Verdict.FAIL, "/dev/shm is full", evidence, leftovers)
    if shm.mount != "/dev/shm":
        evidence = f"it is part of {shm.mount}"
        return _bad(Verdict.WARN, "/dev/shm is not in memory", evidence, "mount a tmpfs there")
    if shm.size_kib < _ADVISED_KIB:
        hint = "enlarge it: mount -o remount,size=50% /dev/shm"
        return _bad(Verdict.WARN, "/dev/shm is small", evidence, hint)
    if shm.used_percent > _FULL_PERCENT:
        return _bad(Verdict.WARN, "/dev/shm is nearly full", evidence, leftovers)
    return None


def _bad(verdict: Verdict, summary: str, evidence: str, hint: str) -> Ruling:
    command = "df -h /dev/shm; ls -lS /dev/shm | head"
    return Ruling(verdict=verdict, summary=summary, evidence=evidence, hint=hint, command=command)


CHECK = Check(id="HOST010", name="host-shm", about=ABOUT, probes=(PROBE,), judge=judge)
