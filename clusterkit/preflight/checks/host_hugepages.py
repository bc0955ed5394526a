"""HOST012: whether huge pages are set the same on all nodes."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Tier, uniform
from clusterkit.preflight.probes.host.system import PROBE, System

_KIB_PER_GIB = 1 << 20

ABOUT = About(
    what="Transparent huge pages and the pool of huge pages are the same on all nodes.",
    why="They change how fast host memory is and how much of it is left; a node that differs is a"
    " straggler that no GPU tool shows.",
    how="/sys/kernel/mm/transparent_hugepage/enabled and Hugetlb of /proc/meminfo.",
    fix="Give the odd nodes the kernel settings of the others (vm.nr_hugepages, boot line).",
    source="Linux, admin-guide/mm/transhuge; majority vote over the nodes of the job",
)


def judge(evidence: Evidence) -> Judgement:
    """Warn of odd settings."""
    return uniform(
        evidence,
        PROBE,
        _setting,
        what="huge page setting",
        odd=Verdict.WARN,
        hint="give the odd nodes the kernel settings of the others",
    )


def _setting(system: System) -> str | None:
    if system.transparent_huge_pages is None and system.huge_kib is None:
        return None
    pool_gib = (system.huge_kib or 0) / _KIB_PER_GIB
    return f"{system.transparent_huge_pages or 'none'}, pool {pool_gib:g} GiB"


CHECK = Check(
    id="HOST012",
    name="host-hugepages",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
