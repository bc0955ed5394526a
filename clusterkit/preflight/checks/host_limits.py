"""HOST: what the processes of a job may use on a node: locked memory, files, /dev/shm and /tmp."""

# ruff: noqa: S108 - the folders are named in what is said, nothing is written

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import each, each_machine, each_node
from clusterkit.preflight.checks.results import Advice, Result, Results, ok, skip
from clusterkit.preflight.checks.types import Evidence, NodeFacts, check
from clusterkit.preflight.probes.host import disks, limits, system
from clusterkit.preflight.probes.host.disks import Disks, Volume
from clusterkit.preflight.probes.host.limits import Limits

_LOCKED_FAIL_BYTES = 64 << 20
_LOCKED_WARN_BYTES = 16 << 30


@check("HOST008", "host-memlock", system.PROBE, limits.PROBE)
@each_machine
def _memlock(node: NodeFacts) -> Result:
    machine = node.need(system.PROBE)
    if not machine.rdma_devices:
        return skip("no RDMA device needs locked memory")
    locked = node.need(limits.PROBE).locked_bytes
    if locked is None or locked >= _LOCKED_WARN_BYTES:
        return ok("enough memory may be locked")
    advice = Advice(
        hint="set memlock to unlimited for sshd, slurmd and in /etc/security/limits.d",
        command="ulimit -l; grep -rn memlock /etc/security; systemctl show slurmd | grep MEMLOCK",
    )
    return advice.result(
        Verdict.FAIL if locked < _LOCKED_FAIL_BYTES else Verdict.WARN,
        f"only {locked >> 20} MiB may be locked, RDMA needs more",
        f"{locked} bytes; {', '.join(machine.rdma_devices)}",
    )


_FILES_PER_RANK = 4096
_MIN_FILES = 1024
_FILES = Advice(
    hint="raise nofile in limits.d, or put ulimit -n $(ulimit -Hn) into the job's setup",
    command="ulimit -Sn; ulimit -Hn",
)


@check("HOST009", "host-nofile", limits.PROBE)
def _nofile(evidence: Evidence) -> Results:
    ranks = evidence.job.gpus_per_node or 1
    # In jobs of several nodes at least the figure for one rank.
    advised = _FILES_PER_RANK * ranks if len(evidence.job.hosts) > 1 else _MIN_FILES

    def rule(found: Limits) -> Result:
        if found.open_files is None or found.open_files >= advised:
            return ok("enough files may be open")
        verdict = Verdict.FAIL if found.open_files < _MIN_FILES else Verdict.WARN
        summary = f"only {found.open_files} files may be open, {advised} are advised"
        return _FILES.result(verdict, summary)

    return each(evidence, limits.PROBE, rule)


_SHM_MIN_KIB = 64 << 10
"""Docker's default size, in which NCCL is known to fail."""

_SHM_ADVISED_KIB = 1 << 20
_SHM_FULL_PERCENT = 90


@check("HOST010", "host-shm", disks.PROBE)
@each_node(disks.PROBE)
def _shm(facts: Disks) -> Result:
    if facts.shm is None:
        return _of_shm("mount a tmpfs there").fail("there is no /dev/shm")
    return _fault_of_shm(facts.shm) or ok("/dev/shm is large enough and free")


def _of_shm(hint: str) -> Advice:
    return Advice(hint=hint, command="df -h /dev/shm; ls -lS /dev/shm | head")


def _fault_of_shm(shm: Volume) -> Result | None:
    free = f"{shm.available_kib >> 10} MiB free of {shm.size_kib >> 10} MiB"
    clean = _of_shm("remove what dead jobs have left there")
    if shm.size_kib <= _SHM_MIN_KIB:
        enlarge = _of_shm("a container needs --shm-size=16g or --ipc=host")
        return enlarge.fail("/dev/shm is too small", free)
    if shm.available_kib < _SHM_MIN_KIB or shm.inodes_available == 0:
        return clean.fail("/dev/shm is full", free)
    if shm.mount != "/dev/shm":
        mount = _of_shm("mount a tmpfs there")
        return mount.warn("/dev/shm is not in memory", f"it is part of {shm.mount}")
    if shm.size_kib < _SHM_ADVISED_KIB:
        enlarge = _of_shm("enlarge it: mount -o remount,size=50% /dev/shm")
        return enlarge.warn("/dev/shm is small", free)
    full = shm.used_percent > _SHM_FULL_PERCENT
    return clean.warn("/dev/shm is nearly full", free) if full else None


_TMP_FAIL_KIB = 256 << 10
_TMP_FAIL_INODES = 1000
_TMP_WARN_KIB = 2 << 20
_TMP_WARN_PERCENT = 95
_TMP = Advice(
    hint="remove what old jobs have left, or set TMPDIR to another folder",
    command="df -h /tmp; df -i /tmp; du -xsh /tmp/* | sort -h | tail",
)


@check("HOST011", "host-tmp", disks.PROBE)
@each_node(disks.PROBE)
def _tmp(facts: Disks) -> Result:
    tmp = facts.tmp
    if tmp is None:
        return _TMP.fail("there is no /tmp")
    inodes = tmp.inodes_available
    free = f"{tmp.available_kib >> 10} MiB free, {tmp.used_percent:.0f} % used on {tmp.mount}"
    if tmp.available_kib < _TMP_FAIL_KIB:
        return _TMP.fail("/tmp is full", free)
    if inodes is not None and inodes < _TMP_FAIL_INODES:
        return _TMP.fail("/tmp has no inodes left", f"{inodes} of {tmp.inodes}")
    if tmp.available_kib < _TMP_WARN_KIB or tmp.used_percent >= _TMP_WARN_PERCENT:
        return _TMP.warn("/tmp is nearly full", free)
    if inodes is not None and inodes * 100 < (tmp.inodes or 0) * (100 - _TMP_WARN_PERCENT):
        return _TMP.warn("/tmp has few inodes left", f"{inodes} of {tmp.inodes}")
    return ok("/tmp has room")
