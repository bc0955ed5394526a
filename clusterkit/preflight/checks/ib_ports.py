"""IB: whether RDMA ports are up, fast, looked after by a subnet manager, and free of errors."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import known, machine_check, most, node_check
from clusterkit.preflight.checks.results import Result, Results, advice, missing, ok, skip
from clusterkit.preflight.checks.types import Evidence, NodeFacts, Tier, check
from clusterkit.preflight.probes.gpu import kernel_log
from clusterkit.preflight.probes.net import rdma_ports
from clusterkit.preflight.probes.net.rdma_ports import Port, PortCounters, Rdma, RdmaCounters
from clusterkit.preflight.topology.analysis import parse_names
from clusterkit.transport.probe import Missing, PreflightJob

_MIN_VOTERS = 3
_WHY_DOWN = {
    "polling": "no signal: check the cable and the switch port",
    "disabled": "turned off: `ip link set DEV up` or `mlxlink -d DEV --port_state UP`",
    "link up": "the link is up, the port is not: see whether its driver and subnet manager run",
}
_NO_LID = 65535


@check("IB002", "ib-port-state", rdma_ports.PROBE, tier=Tier.ROUND_TRIP)
def _port_state(evidence: Evidence) -> Results:
    found, results = known(evidence, rdma_ports.PROBE)
    yield from results
    votes = Counter((port.name, port.active) for rdma in found.values() for port in rdma.ports)
    # Where no node has one that is up, nobody uses them; a node alone has to speak for itself.
    used = len(found) == 1 or any(p.active for rdma in found.values() for p in _infiniband(rdma))
    job = evidence.job
    needed = used and len(job.hosts) > 1 and job.env.get("NCCL_IB_DISABLE") != "1"
    for name, rdma in found.items():
        down = [port for port in rdma.ports if not port.active]
        bad = [port for port in down if _should_be_up(port, rdma, votes, len(found))]
        if bad:
            yield name, _down(bad, rdma)
        elif (none := _none_active(rdma, needed=needed)) is not None:
            yield name, none
        else:
            yield name, ok("RDMA ports are up as they should be", _states(down))


def _should_be_up(port: Port, rdma: Rdma, votes: Counter[tuple[str, bool]], nodes: int) -> bool:
    up, down = votes[port.name, True], votes[port.name, False]
    if nodes >= _MIN_VOTERS and max(up, down) * 2 > nodes:
        return up > down
    kin = [other for other in _kin(port, rdma) if other.number == port.number]
    return sum(other.active for other in kin) * 2 > len(kin)


def _kin(port: Port, rdma: Rdma) -> list[Port]:
    """Return the ports of the same kind of device and link layer, itself among them."""
    family = {device.name: device.family for device in rdma.devices}
    kind = family[port.device], port.layer
    return [other for other in rdma.ports if (family[other.device], other.layer) == kind]


def _states(ports: list[Port]) -> str:
    return ", ".join(f"{port.name} {port.state}/{port.physical or '?'}" for port in ports)


def _why_down(port: Port) -> str:
    if port.state in {"init", "armed"}:
        return "no subnet manager has set it up"
    if port.physical == "link up" and port.lid == _NO_LID:
        return "a virtual function without a LID: its host or the subnet manager has to set it up"
    return _WHY_DOWN.get(port.physical or "", "check the cable, the switch port and the driver")


def _infiniband(rdma: Rdma) -> list[Port]:
    return [port for port in rdma.ports if port.layer == "InfiniBand"]


def _none_active(rdma: Rdma, *, needed: bool) -> Result | None:
    """Return the result for a node of which no port is active, or none of its InfiniBand ports.

    Ethernet ports may serve as plain interfaces, and single InfiniBand ports may be spare.
    """
    active = [port for port in rdma.ports if port.active]
    infiniband = _infiniband(rdma)
    ports = infiniband or list(rdma.ports)
    if any(port.active for port in ports) or len(active) >= max(len(ports), 1):
        return None
    why = _why_down(ports[0]) if ports else ""
    tcp = "no RDMA port is active: NCCL falls back to TCP"
    return advice("IB002", "none", why=why).result(
        Verdict.FAIL if needed and infiniband and not active else Verdict.WARN,
        "no InfiniBand port is active" if active else tcp,
        _states(ports),
    )


def _down(bad: list[Port], rdma: Rdma) -> Result:
    first = bad[0]
    kin = [port for port in _kin(first, rdma) if port.number == first.number]
    active = f"{sum(port.active for port in kin)} of {len(kin)} such ports are active"
    names = ",".join(port.name for port in bad)
    return advice("IB002", why=_why_down(first), device=first.device).fail(
        f"{names} {'is' if len(bad) == 1 else 'are'} {first.state}", f"{_states(bad)}; {active}"
    )


@check("IB003", "ib-port-rate", rdma_ports.PROBE, tier=Tier.ROUND_TRIP)
def _port_rate(evidence: Evidence) -> Results:
    found, results = known(evidence, rdma_ports.PROBE)
    yield from results
    votes: dict[str, Counter[tuple[float, int | None]]] = defaultdict(Counter)
    for rdma in found.values():
        for port in rdma.ports:
            votes[port.name].update([port.speed] if port.speed else [])
    across = {name: most(cast) for name, cast in votes.items() if cast.total() >= _MIN_VOTERS}
    for name, rdma in found.items():
        speeds = {port: port.speed for port in rdma.ports if port.speed is not None}
        slow = []
        for port, speed in speeds.items():
            usual = across.get(port.name)
            if port.name not in across:
                kin = _kin(port, rdma)
                usual = most(Counter(speeds[other] for other in kin if other in speeds))
            slow += [(port, speed, usual)] if usual is not None and usual != speed else []
        if not speeds:
            yield name, skip("no active port whose rate is known")
        elif below := _below(speeds, evidence.job):
            yield name, below
        elif slow:
            yield name, _slow(slow)
        else:
            rates = sorted({rate for rate, _ in speeds.values()}, reverse=True)
            yield name, ok(f"active ports run at {'/'.join(f'{r:g}' for r in rates)} Gb/s")


def _below(speeds: Mapping[Port, tuple[float, int | None]], job: PreflightJob) -> Result | None:
    """Return the result where too few ports have the rate of the instance type."""
    wanted = job.rdma_gbps or 0.0
    slow = [port for port, (rate, _) in speeds.items() if rate < wanted]
    fast = len(speeds) - len(slow)
    if not slow or fast >= (job.rdma_devices or 0):
        return None
    summary = (
        f"{fast or 'no'} ports run at {wanted:g} Gb/s, the instance type has {job.rdma_devices}"
    )
    seen = ", ".join(f"{port.name} {speeds[port][0]:g} Gb/s" for port in slow)
    return advice("IB003", device=slow[0].device).fail(summary, seen)


def _slow(slow: list[tuple[Port, tuple[float, int | None], tuple[float, int | None]]]) -> Result:
    def text(speed: tuple[float, int | None]) -> str:
        return f"{speed[0]:g} Gb/s" + (f" {speed[1]}X" if speed[1] else "")

    first, speed, usual = slow[0]
    below = any(rate < expected for _, (rate, _), (expected, _) in slow)
    return advice("IB003", device=first.device).result(
        Verdict.FAIL if below else Verdict.WARN,
        f"{first.name} runs at {text(speed)}, usual is {text(usual)}",
        ", ".join(f"{p.name} {text(has)} (usual: {text(u)})" for p, has, u in slow),
    )


@node_check("IB004", "ib-sm-lid", rdma_ports.PROBE)
def _sm_lid(rdma: Rdma) -> Result:
    up = [port for port in _infiniband(rdma) if port.state != "down"]
    ports = [port for port in up if port.sm_lid is not None]
    if not ports:
        return skip("SM lids are not told" if up else "no InfiniBand link is up")
    lost = [port.name for port in ports if port.sm_lid == 0]
    if not lost:
        return ok("InfiniBand ports know their subnet manager")
    return advice("IB004").fail(f"no subnet manager for {','.join(lost)}", "SM lid 0")


_FLAPS = 3


@check("IB006", "ib-counters", rdma_ports.ERROR_COUNTERS, kernel_log.PROBE)
def _counters(evidence: Evidence) -> Results:
    for node in evidence.nodes:
        counters, log = node.of(rdma_ports.ERROR_COUNTERS), node.of(kernel_log.PROBE)
        flaps = {} if isinstance(log, Missing) else log.flaps
        often = {name: n for name, n in flaps.items() if n >= _FLAPS}
        if often:
            yield node.name, _flapping(often)
        result = missing(counters) if isinstance(counters, Missing) else _rising(counters)
        loud = not isinstance(counters, Missing) and result.verdict in {Verdict.FAIL, Verdict.WARN}
        if not often or loud:
            yield node.name, result


def _flapping(often: Mapping[str, int]) -> Result:
    worst = max(often, key=lambda name: often[name])
    return advice("IB006", "flaps", lines=f"{worst}:").warn(
        f"{', '.join(sorted(often))} lost the carrier again and again",
        ", ".join(f"{name} {n}x" for name, n in often.items()) + " in a day",
    )


def _rising(counters: RdmaCounters) -> Result:
    if not counters.ports:
        return skip("ports have no error counters")
    ports = counters.ports
    odd = [port for port in ports if port.rising] or [port for port in ports if port.full]
    totals = [f"{port.port} {name} {n} since reset" for port in odd for name, n in port.total]
    if not odd:
        return ok("no error counter rises")
    # A link that goes down comes first: it is what the verdict rests on.
    odd.sort(key=lambda port: not _went_down(port))
    first = odd[0]
    device = first.port.partition("/")[0]
    check_link = advice("IB006", "" if first.rising else "full", device=device)
    full = ", ".join(f"{name} {n}" for name, n in first.full)
    summary = f"counters of {first.port} are full, and tell no more: {full}"
    if first.rising:
        rising = ", ".join(f"{name} +{n}" for name, n in first.rising)
        summary = f"errors rise on {first.port}: {rising}"
    verdict = Verdict.FAIL if _went_down(first) else Verdict.WARN
    return check_link.result(verdict, summary, "; ".join(totals[:8]))


def _went_down(port: PortCounters) -> bool:
    return any(name == "link_downed" for name, _ in port.rising)


@machine_check("IB007", "ib-roce-gid", rdma_ports.PROBE)
def _roce_gid(node: NodeFacts, job: PreflightJob) -> Result:
    rdma, used = node.need(rdma_ports.PROBE), parse_names(job.env.get("NCCL_IB_HCA", ""))
    ethernet = [port for port in rdma.ports if port.active and port.layer == "Ethernet"]
    ports = [port for port in ethernet if used.takes(port.device, port.number)]
    if not any(port.gids for port in ports):
        return skip("GIDs of RoCE ports are not known" if ports else "no RoCE port in use")
    value = job.env.get("NCCL_IB_GID_INDEX", "")
    # Anything but a number is the lint's business; -1 lets NCCL choose.
    index = int(value) if re.fullmatch(r"[0-9]{1,3}", value) else None
    right = {p.name for p in ports for gid in p.gids if (gid.index, gid.kind) == (index, "RoCE v2")}
    bad = [port for port in ports if index is not None and port.name not in right]
    if bad:
        summary = f"no RoCE v2 GID at index {value} of {bad[0].name}"
        return advice("IB007", "index").fail(summary, _gids_of(bad))
    v2 = {p.name: [g.value for g in p.gids if g.kind == "RoCE v2"] for p in ports}
    lacking = [p for p in ports if all(value.startswith("fe80:") for value in v2[p.name])]
    if lacking:
        summary = f"no routable RoCE v2 GID on {','.join(port.name for port in lacking)}"
        return advice("IB007", "address").warn(summary, _gids_of(lacking))
    return ok("RoCE ports have routable v2 GIDs")


def _gids_of(ports: list[Port]) -> str:
    listed = {p.name: ", ".join(f"{gid.index} {gid.kind}" for gid in p.gids[:6]) for p in ports}
    return "; ".join(f"{name}: {gids or 'no GID'}" for name, gids in listed.items())
