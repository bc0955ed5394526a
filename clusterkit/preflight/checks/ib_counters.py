"""IB006: whether error counters of RDMA ports rise."""

from __future__ import annotations

from collections.abc import Mapping

from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    missing,
    passed,
)
from clusterkit.preflight.probes.gpu import kernel_log
from clusterkit.preflight.probes.net.rdma_counters import PROBE, PortCounters, RdmaCounters
from clusterkit.transport.probe import Missing

ABOUT = About(
    what="No error counter of a port rises between two readings one second apart or is full, and"
    " no link flaps.",
    why="A link that drops or corrupts packets right now will slow or abort the job. Totals since"
    " boot say little: cables are pulled, switches restart.",
    how="/sys/class/infiniband/*/ports/*/counters, read twice: link_downed rising is a failure,"
    " symbol_error, port_rcv_errors and the like a warning. Counters stay at their greatest value"
    " (link_downed 255), so that one there warns. An RDMA interface of which systemd-networkd said"
    " three times in a day that it lost its carrier warns, too.",
    fix="Clean or replace the cable or transceiver: `mlxlink -d DEV -c -e` shows error rates of the"
    " link.",
    source="InfiniBand architecture, PortCounters; NVIDIA/NVSentinel#1236 asks for the same",
)


_FLAPS = 3


def judge(evidence: Evidence) -> Judgement:
    """Name the ports whose counters rise or cannot, and the links that went down."""
    for node in evidence.nodes:
        counters, log = node.of(PROBE), node.of(kernel_log.PROBE)
        flaps = {} if isinstance(log, Missing) else log.flaps
        often = {name: n for name, n in flaps.items() if n >= _FLAPS}
        if often:
            yield node.name, _flapping(often)
        if isinstance(counters, Missing):
            if not often:
                yield node.name, missing(counters)
            continue
        ruling = _rule(counters)
        if not often or ruling.verdict in {Verdict.FAIL, Verdict.WARN}:
            yield node.name, ruling


def _flapping(often: Mapping[str, int]) -> Ruling:
    worst = max(often, key=lambda name: often[name])
    return Ruling(
        verdict=Verdict.WARN,
        summary=f"{', '.join(sorted(often))} lost the carrier again and again",
        evidence=", ".join(f"{name} {n}x" for name, n in often.items()) + " in a day",
        hint="check the cable and the transceiver",
        command=f"journalctl -b -t systemd-networkd | grep {quote(f'{worst}:')}",
    )


def _rule(counters: RdmaCounters) -> Ruling:
    if not counters.ports:
        return Ruling(verdict=Verdict.SKIP, summary="ports have no error counters")
    odd = [port for port in counters.ports if port.rising] or [
        port for port in counters.ports if port.full
    ]
    totals = [f"{port.port} {name} {n} since reset" for port in odd for name, n in port.total]
    if not odd:
        return passed("no error counter rises")
    # A link that goes down comes first: it is what the verdict rests on.
    odd.sort(key=lambda port: not _went_down(port))
    rising = ", ".join(f"{name} +{n}" for name, n in odd[0].rising)
    full = ", ".join(f"{name} {n}" for name, n in odd[0].full)
    return Ruling(
        verdict=Verdict.FAIL if _went_down(odd[0]) else Verdict.WARN,
        summary=f"errors rise on {odd[0].port}: {rising}"
        if rising
        else f"counters of {odd[0].port} are full, and tell no more: {full}",
        evidence="; ".join(totals[:8]),
        hint="check the cable and the transceiver"
        + ("" if rising else "; reset the counters with `perfquery -R`, and look again"),
        command=f"sudo mlxlink -d {quote(odd[0].port.partition('/')[0])} -c -e",
    )


def _went_down(port: PortCounters) -> bool:
    return any(name == "link_downed" for name, _ in port.rising)


CHECK = Check(
    id="IB006", name="ib-counters", about=ABOUT, probes=(PROBE, kernel_log.PROBE), judge=judge
)
