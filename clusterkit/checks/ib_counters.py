"""IB006: whether error counters of RDMA ports rise."""

from __future__ import annotations

from clusterkit.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.findings import Verdict
from clusterkit.probes.rdma_counters import PROBE, PortCounters, RdmaCounters
from clusterkit.shell import quote

ABOUT = About(
    what="No error counter of a port rises between two readings one second apart.",
    why="A link that drops or corrupts packets right now will slow or abort the job. Totals since"
    " boot say little: cables are pulled, switches restart.",
    how="/sys/class/infiniband/*/ports/*/counters, read twice: link_downed rising is a failure,"
    " symbol_error, port_rcv_errors and the like a warning.",
    fix="Clean or replace the cable or transceiver: `mlxlink -d DEV -c -e` shows error rates of the"
    " link.",
    source="InfiniBand architecture, PortCounters; NVIDIA/NVSentinel#1236 asks for the same",
)


def judge(evidence: Evidence) -> Judgement:
    """Name the ports whose counters rise."""
    yield from each(evidence, PROBE, _rule)


def _rule(counters: RdmaCounters) -> Ruling:
    if not counters.ports:
        return Ruling(verdict=Verdict.SKIP, summary="ports have no error counters")
    odd = [port for port in counters.ports if port.rising]
    totals = [f"{port.port} {name} {n} since reset" for port in odd for name, n in port.total]
    if not odd:
        return passed("no error counter rises")
    # A link that goes down comes first: it is what the verdict rests on.
    odd.sort(key=lambda port: not _went_down(port))
    rising = ", ".join(f"{name} +{n}" for name, n in odd[0].rising)
    return Ruling(
        verdict=Verdict.FAIL if _went_down(odd[0]) else Verdict.WARN,
        summary=f"errors rise on {odd[0].port}: {rising}",
        evidence="; ".join(totals[:8]),
        hint="check the cable and the transceiver",
        command=f"sudo mlxlink -d {quote(odd[0].port.partition('/')[0])} -c -e",
    )


def _went_down(port: PortCounters) -> bool:
    return any(name == "link_downed" for name, _ in port.rising)


CHECK = Check(id="IB006", name="ib-counters", about=ABOUT, probes=(PROBE,), judge=judge)
