"""HOST004: whether all nodes run the same kernel and operating system."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Tier, uniform
from clusterkit.preflight.probes.host.system import PROBE

ABOUT = About(
    what="All nodes have the same processor architecture, kernel and operating system.",
    why="A node with another kernel has another GPU driver build, other RDMA modules and limits;"
    " it is the one that behaves differently, and nobody thinks of it.",
    how="uname -r, uname -m and /etc/os-release; the value of most nodes counts as right.",
    fix="Reinstall or reboot the odd nodes into the image of the others.",
    source="majority vote over the nodes of the job; GoogleCloudPlatform/cluster-health-scanner"
    " compares the same with a golden node",
)


def judge(evidence: Evidence) -> Judgement:
    """Warn of odd kernels."""
    return uniform(
        evidence,
        PROBE,
        lambda system: f"{system.kernel} {system.arch}, {system.os or 'unknown OS'}",
        what="kernel",
        odd=Verdict.WARN,
        hint="boot the odd nodes into the image of the others",
    )


CHECK = Check(
    id="HOST004",
    name="host-os",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
