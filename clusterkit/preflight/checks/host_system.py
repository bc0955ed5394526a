"""HOST: clock, kernel, CPUs and memory of the nodes."""

from __future__ import annotations

from statistics import median

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import each_node, known, same_on_all
from clusterkit.preflight.checks.results import Advice, Result, Results, ok, skip, unknown, warn
from clusterkit.preflight.checks.types import Evidence, Tier, check
from clusterkit.preflight.probes.host import system
from clusterkit.preflight.probes.host.system import System

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
        here = warn(
            "this machine's clock differs from that of the nodes",
            f"the nodes are {middle:+.1f} s off",
            hint="the nodes agree with each other; mend the clock of this machine",
            command="timedatectl",
        )
        yield None, here


def _skew(skew_s: float) -> Result:
    if abs(skew_s) <= _CLOCK_WARN_S:
        return ok("clock agrees with the others")
    advice = Advice(
        hint="let chrony or ntpd run there; step the clock once: chronyc makestep",
        command="chronyc tracking || timedatectl",
    )
    verdict = Verdict.FAIL if abs(skew_s) > _CLOCK_FAIL_S else Verdict.WARN
    summary = f"clock is {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}"
    return advice.result(verdict, summary, f"{skew_s:+.2f} s")


@check("HOST004", "host-os", system.PROBE, tier=Tier.ROUND_TRIP)
@same_on_all(
    system.PROBE,
    "kernel",
    odd=Verdict.WARN,
    hint="boot the odd nodes into the image of the others",
)
def _os(facts: System) -> str:
    return f"{facts.kernel} {facts.arch}, {facts.os or 'unknown OS'}"


@check("HOST005", "host-cpus", system.PROBE, tier=Tier.ROUND_TRIP)
@same_on_all(
    system.PROBE,
    "processor count",
    odd=Verdict.WARN,
    hint="look for offline processors, or hyper-threading set differently in the BIOS",
)
def _cpus(facts: System) -> int:
    return facts.cpus


_DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""There `powersave` is the ordinary governor: it goes up to the full clock under load."""


@check("HOST006", "host-governor", system.PROBE)
@each_node(system.PROBE)
def _governor(facts: System) -> Result:
    if not facts.governors:
        return skip("the clock is not steered by the kernel")
    driver = facts.cpufreq_driver or "unknown driver"
    slow = "powersave" in facts.governors and driver not in _DYNAMIC_DRIVERS
    if not slow and len(facts.governors) == 1:
        return ok(f"frequency governor {facts.governors[0]}")
    return warn(
        "frequency governor " + " and ".join(facts.governors),
        driver,
        hint="set all processors to performance",
        command="cpupower frequency-info",
    )


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
        hint = "a memory module may have failed: look into the BMC's log"
        command = "sudo dmidecode -t memory"
        return warn("less memory than the others", of, hint=hint, command=command)
    if free is not None and free < _MIN_FREE * total:
        taken = f"{free / _KIB_PER_GIB:.1f} GiB free of {of}"
        hint = "look for processes that another job has left behind"
        command = "ps aux --sort=-rss | head"
        return warn("most of its memory is taken", taken, hint=hint, command=command)
    if huge is not None and huge > _MAX_HUGE * total:
        taken = f"{huge / _KIB_PER_GIB:.0f} GiB of {of}"
        hint = "lower vm.nr_hugepages: a job cannot use what is set aside"
        command = "grep Huge /proc/meminfo"
        return warn("huge pages take most memory", taken, hint=hint, command=command)
    return ok("as much memory as the others, and free")


@check("HOST012", "host-hugepages", system.PROBE, tier=Tier.ROUND_TRIP)
@same_on_all(
    system.PROBE,
    "huge page setting",
    odd=Verdict.WARN,
    hint="give the odd nodes the kernel settings of the others",
)
def _hugepages(facts: System) -> str | None:
    if facts.transparent_huge_pages is None and facts.huge_kib is None:
        return None
    pool_gib = (facts.huge_kib or 0) / _KIB_PER_GIB
    return f"{facts.transparent_huge_pages or 'none'}, pool {pool_gib:g} GiB"
