"""IB005: whether RDMA devices of one kind run the same firmware."""

from __future__ import annotations

from collections import Counter, defaultdict

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
from clusterkit.preflight.probes.net.rdma import Device
from clusterkit.preflight.probes.net.rdma_ports import PROBE

ABOUT = About(
    what="All devices of one kind (board, chip, generation of the firmware) have one firmware.",
    why="Mixed firmware behaves differently under congestion and in adaptive routing: slow or"
    " failing collectives that depend on which nodes a job gets.",
    how="/sys/class/infiniband/*/{fw_ver,board_id,hca_type}; boards of different kinds may differ.",
    fix="Update the odd ones: `mlxfwmanager --query`, `flint -d DEV query`.",
    source="majority of the job's own nodes",
)


def judge(evidence: Evidence) -> Judgement:
    """Name the nodes with a firmware that is not usual."""
    facts, rulings = known(evidence, PROBE)
    yield from rulings
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for rdma in facts.values():
        for device in rdma.devices:
            if device.firmware:
                seen[device.family][device.firmware] += 1
    usual = {family: _usual(votes) for family, votes in seen.items()}
    for name, rdma in facts.items():
        devices = [device for device in rdma.devices if device.firmware]
        odd = [device for device in devices if device.firmware != usual[device.family]]
        if not devices:
            yield name, Ruling(verdict=Verdict.SKIP, summary="firmware of devices is not known")
        elif odd:
            yield name, _warn(odd, usual[odd[0].family], seen[odd[0].family])
        else:
            yield name, passed("firmware is the same within each kind of device")


def _usual(votes: Counter[str]) -> str | None:
    firmware, n = votes.most_common(1)[0]
    return firmware if n * 2 > votes.total() else None


def _warn(odd: list[Device], usual: str | None, votes: Counter[str]) -> Ruling:
    names = ",".join(device.name for device in odd)
    return Ruling(
        verdict=Verdict.WARN,
        summary=f"firmware {odd[0].firmware} on {names}, usual is {usual}"
        if usual
        else "firmware differs within a kind of device, none is usual",
        evidence=", ".join(f"{version}: {n}" for version, n in votes.most_common()),
        hint="update the firmware of the odd devices",
        command=f"sudo flint -d {quote(odd[0].name)} query",
    )


CHECK = Check(
    id="IB005",
    name="ib-firmware",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
