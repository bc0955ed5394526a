"""HOST007: whether a node has as much memory as the others, and enough of it free."""

from __future__ import annotations

from statistics import median

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
from clusterkit.preflight.probes.host.system import PROBE, System
from clusterkit.transport.probe import Missing

_LEAST_SHARE = 0.97
"""3 % is what firmware and crash kernels take differently (mej/nhc check_hw_physmem)."""

_LEAST_FREE = 0.10
_MOST_HUGE = 0.50
_KIB_PER_GIB = 1 << 20

ABOUT = About(
    what="A node has the memory of the others, and most of it is free for the job.",
    why="A failed module takes its memory out of the machine at boot. What another process or a"
    " pool of huge pages holds, checkpoint loading and pinned buffers lack: the job is killed.",
    how="MemTotal, MemAvailable and Hugetlb of /proc/meminfo, the total against the median.",
    fix="Look for lost modules (dmidecode -t memory, the BMC's log) and for leftover processes.",
    source="mej/nhc check_hw_physmem, 3 % tolerance; a tenth free and half in huge pages are ours",
)


def judge(evidence: Evidence) -> Judgement:
    """Warn of too little memory."""
    found: dict[str, System] = {}
    for node in evidence.nodes:
        facts = node.of(PROBE)
        if isinstance(facts, Missing):
            yield node.name, missing(facts)
        else:
            found[node.name] = facts
    typical = median(system.memory_kib for system in found.values()) if found else 0
    for name, system in found.items():
        yield name, _rule(system, typical)


def _rule(system: System, typical: float) -> Ruling:
    total = system.memory_kib
    evidence = f"{total / _KIB_PER_GIB:.0f} GiB, median {typical / _KIB_PER_GIB:.0f} GiB"
    if total < _LEAST_SHARE * typical:
        hint = "a memory module may have failed: look into the BMC's log"
        return _warn("less memory than the others", evidence, hint, "sudo dmidecode -t memory")
    if system.available_kib is not None and system.available_kib < _LEAST_FREE * total:
        evidence = f"{system.available_kib / _KIB_PER_GIB:.1f} GiB free of {evidence}"
        hint = "look for processes that another job has left behind"
        return _warn("most of its memory is taken", evidence, hint, "ps aux --sort=-rss | head")
    if system.huge_kib is not None and system.huge_kib > _MOST_HUGE * total:
        evidence = f"{system.huge_kib / _KIB_PER_GIB:.0f} GiB of {evidence}"
        hint = "lower vm.nr_hugepages: a job cannot use what is set aside"
        return _warn("huge pages take most memory", evidence, hint, "grep Huge /proc/meminfo")
    return passed("as much memory as the others, and free")


def _warn(summary: str, evidence: str, hint: str, command: str) -> Ruling:
    return Ruling(
        verdict=Verdict.WARN, summary=summary, evidence=evidence, hint=hint, command=command
    )


CHECK = Check(
    id="HOST007",
    name="host-memory",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
