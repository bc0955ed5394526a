"""IB002: whether the ports that should be up are up."""

from __future__ import annotations

from collections import Counter
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
    what="Every RDMA port that is Active on most nodes is Active on all; where the nodes do not"
    " tell, every port of a kind of which most are Active on the same node.",
    why="A port that is down takes its share of the bandwidth away, or hangs NCCL at start. Ports"
    " that nobody uses, such as Ethernet side ports, are left alone.",
    how="/sys/class/infiniband/*/ports/*/{state,phys_state}; three nodes or more vote on each port"
    " by name, otherwise devices are compared by board, chip and link layer.",
    fix="polling: no signal, check cable and switch port; disabled: an administrator or the driver"
    " turned it off (`ip link set DEV up`, `mlxlink -d DEV`); init: no subnet manager has set it"
    " up. Down with its link up and LID 65535: a virtual function that nobody has configured.",
    source="InfiniBand architecture, port states; recordings of machines with ports down",
)
_VOTERS = 3
_WHY = {
    "polling": "no signal: check the cable and the switch port",
    "disabled": "turned off: `ip link set DEV up` or `mlxlink -d DEV --port_state UP`",
    "link up": "the link is up, the port is not: see whether its driver and subnet manager run",
}
_NO_LID = 65535


def judge(evidence: Evidence) -> Judgement:
    """Name the ports that are down and should not be."""
    facts, rulings = known(evidence, PROBE)
    yield from rulings
    votes = _votes(facts)
    # Where no node has one that is up, nobody uses them; a node alone has to speak for itself.
    used = len(facts) == 1 or any(p.active for rdma in facts.values() for p in _infiniband(rdma))
    job = evidence.job
    wanted = used and len(job.hosts) > 1 and job.env.get("NCCL_IB_DISABLE") != "1"
    for name, rdma in facts.items():
        bad = [port for port in _down(rdma) if _should_be_up(port, rdma, votes, len(facts))]
        if bad:
            yield name, _fail(bad, rdma)
        elif (none := _none(rdma, wanted=wanted)) is not None:
            yield name, none
        else:
            yield name, passed("RDMA ports are up as they should be", _states(_down(rdma)))


def _down(rdma: Rdma) -> list[Port]:
    return [port for port in rdma.ports if not port.active]


def _votes(facts: Mapping[str, Rdma]) -> Counter[tuple[str, bool]]:
    return Counter((port.name, port.active) for rdma in facts.values() for port in rdma.ports)


def _should_be_up(port: Port, rdma: Rdma, votes: Counter[tuple[str, bool]], nodes: int) -> bool:
    up, down = votes[port.name, True], votes[port.name, False]
    if nodes >= _VOTERS and max(up, down) * 2 > nodes:
        return up > down
    kin = _kin(port, rdma)
    return sum(other.active for other in kin) * 2 > len(kin)


def _kin(port: Port, rdma: Rdma) -> list[Port]:
    """Return the ports of the same kind of device, number and link layer, itself among them."""
    family = {device.name: device.family for device in rdma.devices}
    return [
        other
        for other in rdma.ports
        if (family[other.device], other.number, other.layer)
        == (family[port.device], port.number, port.layer)
    ]


def _states(ports: list[Port]) -> str:
    return ", ".join(f"{port.name} {port.state}/{port.physical or '?'}" for port in ports)


def _why(port: Port) -> str:
    if port.state in {"init", "armed"}:
        return "no subnet manager has set it up"
    if port.physical == "link up" and port.lid == _NO_LID:
        return "a virtual function without a LID: its host or the subnet manager has to set it up"
    return _WHY.get(port.physical or "", "check the cable, the switch port and the driver")


def _infiniband(rdma: Rdma) -> list[Port]:
    return [port for port in rdma.ports if port.layer == "InfiniBand"]


def _none(rdma: Rdma, *, wanted: bool) -> Ruling | None:
    """Rule on a node of which no port is active, or no InfiniBand port of more than are active.

    Ethernet ports may serve as plain interfaces, and single InfiniBand ports may be spare.
    """
    active = [port for port in rdma.ports if port.active]
    infiniband = _infiniband(rdma)
    ports = infiniband or list(rdma.ports)
    if any(port.active for port in ports) or len(active) >= max(len(ports), 1):
        return None
    return Ruling(
        verdict=Verdict.FAIL if wanted and infiniband and not active else Verdict.WARN,
        summary="no InfiniBand port is active"
        if active
        else "no RDMA port is active: NCCL falls back to TCP",
        evidence=_states(ports),
        hint=_why(ports[0]) if ports else "",
        command="ibstat || ibv_devinfo",
    )


def _fail(bad: list[Port], rdma: Rdma) -> Ruling:
    kin = _kin(bad[0], rdma)
    active = f"{sum(port.active for port in kin)} of {len(kin)} such ports are active"
    return Ruling(
        verdict=Verdict.FAIL,
        summary=f"{','.join(port.name for port in bad)} "
        + ("is" if len(bad) == 1 else "are")
        + f" {bad[0].state}",
        evidence=f"{_states(bad)}; {active}",
        hint=_why(bad[0]),
        command=f"ibstat {quote(bad[0].device)}; dmesg | grep {quote(bad[0].device)} | tail",
    )


CHECK = Check(
    id="IB002",
    name="ib-port-state",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
