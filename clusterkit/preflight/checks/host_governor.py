"""HOST006: whether the processors may run at full speed."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.probes.host.system import PROBE, System

_DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""There `powersave` is the ordinary governor: it goes up to the full clock under load."""

ABOUT = About(
    what="The frequency governor lets the processors run at full clock.",
    why="With `powersave` of an old driver they stay at the lowest clock: kernel launches and data"
    " loading slow down, and the GPUs wait.",
    how="/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor and scaling_driver.",
    fix="cpupower frequency-set -g performance (root), or the power profile of the BIOS.",
    source="Linux, admin-guide/pm/cpufreq and intel_pstate; facebookresearch/gcm cpufreq check",
)


def judge(evidence: Evidence) -> Judgement:
    """Warn of governors that keep the clock down."""
    return each(evidence, PROBE, _rule)


def _rule(system: System) -> Ruling:
    if not system.governors:
        return Ruling(verdict=Verdict.SKIP, summary="the clock is not steered by the kernel")
    driver = system.cpufreq_driver or "unknown driver"
    slow = "powersave" in system.governors and driver not in _DYNAMIC_DRIVERS
    if slow or len(system.governors) > 1:
        return Ruling(
            verdict=Verdict.WARN,
            summary="frequency governor " + " and ".join(system.governors),
            evidence=driver,
            hint="set all processors to performance",
            command="cpupower frequency-info",
        )
    return passed(f"frequency governor {system.governors[0]}")


CHECK = Check(id="HOST006", name="host-governor", about=ABOUT, probes=(PROBE,), judge=judge)
