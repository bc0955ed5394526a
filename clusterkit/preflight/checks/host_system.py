"""HOST: clock, kernel, CPUs and memory of the nodes, and their limits, /dev/shm and /tmp."""

# ruff: noqa: S108 - folders are named in messages, nothing is written

from __future__ import annotations

from statistics import median

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    Found,
    each_machine,
    known,
    machine_check,
    node_check,
    same_check,
)
from clusterkit.preflight.checks.results import Result, Results, advice, ok, skip, unknown
from clusterkit.preflight.checks.types import Evidence, NodeFacts, Tier, check
from clusterkit.preflight.probes.host import disks, placement, system
from clusterkit.preflight.probes.host.disks import Disks, Volume
from clusterkit.preflight.probes.host.placement import Placement
from clusterkit.preflight.probes.host.system import System
from clusterkit.transport.probe import PreflightJob

_KIB_PER_GIB = 1 << 20
_CLOCK_WARN_S = 1.0
_CLOCK_FAIL_S = 30.0
"""munge, and with it Slurm, refuses credentials at 300 s; certificates and rendezvous earlier."""

_ENOUGH_TO_COMPARE = 3


@check("HOST001", "host-clock", tier=Tier.ROUND_TRIP)
def _clock(evidence: Evidence) -> Results:
    skews = {n.name: s for n in evidence.nodes if (s := n.reach.clock_skew_s) is not None}
    middle = median(skews.values()) if len(skews) >= _ENOUGH_TO_COMPARE else 0.0
    for node in evidence.nodes:
        if node.name in skews:
            yield node.name, _skew(skews[node.name] - middle)
        elif node.reach.via == "local":
            yield node.name, skip("the clock of this machine")
        else:
            yield node.name, unknown("clock was not read")
    if abs(middle) > _CLOCK_WARN_S:
        summary = "this machine's clock differs from that of the nodes"
        yield None, advice("HOST001", "here").warn(summary, f"the nodes are {middle:+.1f} s off")


def _skew(skew_s: float) -> Result:
    if abs(skew_s) <= _CLOCK_WARN_S:
        return ok("clock agrees with the others")
    verdict = Verdict.FAIL if abs(skew_s) > _CLOCK_FAIL_S else Verdict.WARN
    summary = f"clock is {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}"
    return advice("HOST001").result(verdict, summary, f"{skew_s:+.2f} s")


@same_check("HOST004", "host-os", system.PROBE, "kernel", Verdict.WARN)
def _os(facts: System) -> str:
    return f"{facts.kernel} {facts.arch}, {facts.os or 'unknown OS'}"


@same_check("HOST005", "host-cpus", system.PROBE, "CPU count", Verdict.WARN)
def _cpus(facts: System) -> int:
    return facts.cpus


_DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""There `powersave` is the ordinary governor: it goes up to the full clock under load."""


@node_check("HOST006", "host-governor", system.PROBE)
def _governor(facts: System) -> Result:
    if not facts.governors:
        return skip("the clock is not steered by the kernel")
    driver = facts.cpufreq_driver or "unknown driver"
    slow = "powersave" in facts.governors and driver not in _DYNAMIC_DRIVERS
    if not slow and len(facts.governors) == 1:
        return ok(f"frequency governor {facts.governors[0]}")
    return advice("HOST006").warn("frequency governor " + " and ".join(facts.governors), driver)


_MIN_SHARE = 0.97
"""3 % is what firmware and crash kernels take differently (mej/nhc check_hw_physmem)."""

_MIN_FREE = 0.10
_MAX_HUGE = 0.50


@check("HOST007", "host-memory", system.PROBE, tier=Tier.ROUND_TRIP)
def _memory(evidence: Evidence) -> Results:
    found, results = known(evidence, system.PROBE)
    yield from results
    typical = median(facts.memory_kib for facts in found.values()) if found else 0
    for name, facts in found.items():
        yield name, _memory_of(facts, typical)


def _memory_of(facts: System, typical: float) -> Result:
    total, free, huge = facts.memory_kib, facts.available_kib, facts.huge_kib
    of = f"{total / _KIB_PER_GIB:.0f} GiB, median {typical / _KIB_PER_GIB:.0f} GiB"
    if total < _MIN_SHARE * typical:
        return advice("HOST007", "less").warn("less memory than the others", of)
    if free is not None and free < _MIN_FREE * total:
        taken = f"{free / _KIB_PER_GIB:.1f} GiB free of {of}"
        return advice("HOST007", "taken").warn("most of its memory is taken", taken)
    if huge is not None and huge > _MAX_HUGE * total:
        taken = f"{huge / _KIB_PER_GIB:.0f} GiB of {of}"
        return advice("HOST007", "huge").warn("huge pages take most memory", taken)
    return ok("as much memory as the others, and free")


@same_check("HOST012", "host-hugepages", system.PROBE, "huge page setting", Verdict.WARN)
def _hugepages(facts: System) -> str | None:
    if facts.transparent_huge_pages is None and facts.huge_kib is None:
        return None
    pool_gib = (facts.huge_kib or 0) / _KIB_PER_GIB
    return f"{facts.transparent_huge_pages or 'none'}, pool {pool_gib:g} GiB"


_LOCKED_FAIL_BYTES = 64 << 20
_LOCKED_WARN_BYTES = 16 << 30


@check("HOST008", "host-memlock", system.PROBE, system.LIMITS)
@each_machine
def _memlock(node: NodeFacts) -> Result:
    machine = node.need(system.PROBE)
    if not machine.rdma_devices:
        return skip("no RDMA device needs locked memory")
    locked = node.need(system.LIMITS).locked_bytes
    if locked is None or locked >= _LOCKED_WARN_BYTES:
        return ok("enough memory may be locked")
    return advice("HOST008").result(
        Verdict.FAIL if locked < _LOCKED_FAIL_BYTES else Verdict.WARN,
        f"only {locked >> 20} MiB may be locked, RDMA needs more",
        f"{locked} bytes; {', '.join(machine.rdma_devices)}",
    )


_FILES_PER_RANK = 4096
_MIN_FILES = 1024


@machine_check("HOST009", "host-nofile", system.LIMITS)
def _nofile(node: NodeFacts, job: PreflightJob) -> Result:
    files, ranks = node.need(system.LIMITS).open_files, job.gpus_per_node or 1
    # In jobs of several nodes at least the figure for one rank.
    advised = _FILES_PER_RANK * ranks if len(job.hosts) > 1 else _MIN_FILES
    if files is None or files >= advised:
        return ok("enough files may be open")
    verdict = Verdict.FAIL if files < _MIN_FILES else Verdict.WARN
    summary = f"only {files} files may be open, {advised} are advised"
    return advice("HOST009").result(verdict, summary)


_SHM_MIN_KIB = 64 << 10
"""Docker's default size, in which NCCL is known to fail."""

_SHM_ADVISED_KIB = 1 << 20
_SHM_FULL_PERCENT = 90


@node_check("HOST010", "host-shm", disks.PROBE)
def _shm(facts: Disks) -> Result:
    if facts.shm is None:
        return advice("HOST010", "mount").fail("there is no /dev/shm")
    return _fault_of_shm(facts.shm) or ok("/dev/shm is large enough and free")


def _fault_of_shm(shm: Volume) -> Result | None:
    clean = advice("HOST010", "clean")
    free = f"{shm.available_kib >> 10} MiB free of {shm.size_kib >> 10} MiB"
    if shm.size_kib <= _SHM_MIN_KIB:
        return advice("HOST010", "container").fail("/dev/shm is too small", free)
    if shm.available_kib < _SHM_MIN_KIB or shm.inodes_available == 0:
        return clean.fail("/dev/shm is full", free)
    if shm.mount != "/dev/shm":
        what = f"it is part of {shm.mount}"
        return advice("HOST010", "mount").warn("/dev/shm is not in memory", what)
    if shm.size_kib < _SHM_ADVISED_KIB:
        return advice("HOST010", "enlarge").warn("/dev/shm is small", free)
    full = shm.used_percent > _SHM_FULL_PERCENT
    return clean.warn("/dev/shm is nearly full", free) if full else None


_TMP_FAIL_KIB = 256 << 10
_TMP_FAIL_INODES = 1000
_TMP_WARN_KIB = 2 << 20
_TMP_WARN_PERCENT = 95


@node_check("HOST011", "host-tmp", disks.PROBE)
def _tmp(facts: Disks) -> Result:
    tmp, full = facts.tmp, advice("HOST011")
    if tmp is None:
        return full.fail("there is no /tmp")
    inodes = tmp.inodes_available
    free = f"{tmp.available_kib >> 10} MiB free, {tmp.used_percent:.0f} % used on {tmp.mount}"
    if tmp.available_kib < _TMP_FAIL_KIB:
        return full.fail("/tmp is full", free)
    if inodes is not None and inodes < _TMP_FAIL_INODES:
        return full.fail("/tmp has no inodes left", f"{inodes} of {tmp.inodes}")
    if tmp.available_kib < _TMP_WARN_KIB or tmp.used_percent >= _TMP_WARN_PERCENT:
        return full.warn("/tmp is nearly full", free)
    if inodes is not None and inodes * 100 < (tmp.inodes or 0) * (100 - _TMP_WARN_PERCENT):
        return full.warn("/tmp has few inodes left", f"{inodes} of {tmp.inodes}")
    return ok("/tmp has room")


def _no_cloud(job: PreflightJob) -> str | None:
    return None if job.asks_cloud else "platform: off asks no cloud"


@node_check("HOST017", "host-notice", placement.PROBE, skip_if=_no_cloud)
def _notice(facts: Placement) -> Found:
    if facts.notices is None:
        return skip("the cloud does not say whether it takes the machine")
    told = [
        advice("HOST017").result(
            Verdict.FAIL if one.soon else Verdict.WARN,
            f"{one.what} at {one.when}" if one.when else one.what,
        )
        for one in facts.notices
    ]
    return told or ok("the cloud announces nothing")
