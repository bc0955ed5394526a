"""HOST005: whether all nodes have the same number of processors."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Tier, uniform
from clusterkit.preflight.probes.host.system import PROBE

ABOUT = About(
    what="All nodes have the same number of logical processors online.",
    why="Data loading and launching get slower on a node with fewer, and all ranks wait for it.",
    how="Processors in /proc/cpuinfo; the count of most nodes is right.",
    fix="Look for processors switched off (lscpu), hyper-threading that differs in the BIOS, or a"
    " virtual machine of another size.",
    source="majority vote over the nodes of the job; NHC check_hw_cpuinfo",
)


def judge(evidence: Evidence) -> Judgement:
    """Warn of odd counts."""
    return uniform(
        evidence,
        PROBE,
        lambda system: system.cpus,
        what="processor count",
        odd=Verdict.WARN,
        hint="look for offline processors, or hyper-threading set differently in the BIOS",
    )


CHECK = Check(
    id="HOST005",
    name="host-cpus",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
