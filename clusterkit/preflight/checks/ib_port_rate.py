"""IB003: whether active ports run at the rate and width that is usual for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    Tier,
    known,
    passed,
)
from clusterkit.preflight.probes.net.rdma import Port, Rdma
from clusterkit.preflight.probes.net.rdma_ports import PROBE

ABOUT = About(
    what="Every active port has the rate and width that the port has on most nodes; where the"
    " nodes do not tell, that of most ports of its kind on the same node.",
    why="A bad cable makes a link train with fewer lanes or at a lower speed: it is Active, and"
    " every collective of the job waits for it.",
    how="/sys/class/infiniband/*/ports/*/rate, such as `400 Gb/sec (4X NDR)`. The rate of a port"
    " that is down says nothing and is not looked at.",
    fix="Clean or replace the cable or transceiver, check the speed that the switch port is set"
    " to: `mlxlink -d DEV` shows both sides.",
    source="majority of the job's own nodes; recordings with `Rate: 40` on disabled ports",
)
_VOTERS = 3
Speed = tuple[float, int | None]


def judge(evidence: Evidence) -> Judgement:
    """Name the ports that are slower than usual."""
    facts, rulings = known(evidence, PROBE)
    yield from rulings
    votes: dict[str, Counter[Speed]] = defaultdict(Counter)
    for rdma in facts.values():
        for port in _active(rdma):
            votes[port.name][_speed(port)] += 1
    across = {name: _most(cast) for name, cast in votes.items() if cast.total() >= _VOTERS}
    for name, rdma in facts.items():
        ports = _active(rdma)
        slow = [
            (port, usual)
            for port in ports
            if (usual := _usual(port, rdma, across)) is not None and _speed(port) != usual
        ]
        if not ports:
            yield name, Ruling(verdict=Verdict.SKIP, summary="no active port whose rate is known")
        elif slow:
            yield name, _odd(slow)
        else:
            rates = sorted({f"{port.rate_gbps:g}" for port in ports}, key=float, reverse=True)
            yield name, passed(f"active ports run at {'/'.join(rates)} Gb/s")


def _active(rdma: Rdma) -> list[Port]:
    return [port for port in rdma.ports if port.active and port.rate_gbps is not None]


def _speed(port: Port) -> Speed:
    return port.rate_gbps or 0.0, port.width


def _usual(port: Port, rdma: Rdma, across: Mapping[str, Speed | None]) -> Speed | None:
    if port.name in across:
        return across[port.name]
    family = {device.name: device.family for device in rdma.devices}
    return _most(
        Counter(
            _speed(other)
            for other in _active(rdma)
            if (family[other.device], other.layer) == (family[port.device], port.layer)
        )
    )


def _most(votes: Counter[Speed]) -> Speed | None:
    speed, n = votes.most_common(1)[0]
    return speed if n * 2 > votes.total() else None


def _odd(slow: list[tuple[Port, Speed]]) -> Ruling:
    port, usual = slow[0]
    below = any(_speed(port)[0] < usual[0] for port, usual in slow)
    return Ruling(
        verdict=Verdict.FAIL if below else Verdict.WARN,
        summary=f"{port.name} runs at {_text(_speed(port))}, usual is {_text(usual)}",
        evidence=", ".join(f"{p.name} {_text(_speed(p))} (usual: {_text(u)})" for p, u in slow),
        hint="check cable, transceiver and the speed of the switch port",
        command=f"sudo mlxlink -d {quote(port.device)}",
    )


def _text(speed: Speed) -> str:
    return f"{speed[0]:g} Gb/s" + (f" {speed[1]}X" if speed[1] else "")


CHECK = Check(
    id="IB003",
    name="ib-port-rate",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
