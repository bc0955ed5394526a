"""IB001: whether every node has the RDMA devices that most nodes have, and they can be read."""

from __future__ import annotations

from collections import Counter

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Part,
    Ruling,
    Tier,
    known,
    majority,
    passed,
)
from clusterkit.preflight.probes.net.rdma import Rdma
from clusterkit.preflight.probes.net.rdma_ports import PROBE

ABOUT = About(
    what="Every node has as many RDMA devices of each kind as most nodes, and each shows a port.",
    why="A NIC that fell off the PCIe bus is not reported by anything else: NCCL uses what is left,"
    " and the job runs at a fraction of its speed or hangs where ranks pair up unevenly.",
    how="/sys/class/infiniband/*, grouped by board, chip and firmware generation; `ibstat` that"
    " ends with `ibpanic` names a device that cannot be read.",
    fix="`lspci -d 15b3:` shows whether the card is on the bus, `dmesg | grep mlx5` why its driver"
    " gave up; reseat, power-cycle or replace.",
    source="majority of the job's own nodes",
)
_HINT = "see whether the card is on the PCIe bus and what its driver says"
_COMMAND = "lspci -d 15b3:; dmesg | grep -i mlx5 | tail"
_PART = Part(name="RDMA device", hint=_HINT, command=_COMMAND)


def judge(evidence: Evidence) -> Judgement:
    """Name the nodes with fewer devices than most, or with none."""
    facts, rulings = known(evidence, PROBE, part=_PART)
    yield from rulings
    counts = {name: _count(rdma) for name, rdma in facts.items()}
    usual = majority(counts)
    for name, rdma in facts.items():
        yield name, _rule(rdma, counts[name], usual)


Kinds = tuple[tuple[str, int], ...]


def _count(rdma: Rdma) -> Kinds:
    return tuple(sorted(Counter(device.family for device in rdma.devices).items()))


def _rule(rdma: Rdma, has: Kinds, usual: Kinds | None) -> Ruling:
    dead = [device.name for device in rdma.devices if not device.ports]
    count = len(rdma.devices)
    if dead:
        return _odd(Verdict.FAIL, f"{','.join(dead)} cannot be read", "")
    if usual is None:
        return _odd(Verdict.WARN, "RDMA devices differ between nodes, none is usual", _text(has))
    if has == usual:
        return passed(f"{count} RDMA devices")
    most = sum(n for _, n in usual)
    evidence = f"has {_text(has)}; most nodes: {_text(usual)}"
    if count < most:
        return _odd(Verdict.FAIL, f"{count} RDMA devices, most nodes have {most}", evidence)
    return _odd(Verdict.WARN, "other RDMA devices than most nodes", evidence)


def _text(kinds: Kinds) -> str:
    return ", ".join(f"{n} x {kind or 'unknown kind'}" for kind, n in kinds)


def _odd(verdict: Verdict, summary: str, evidence: str) -> Ruling:
    return Ruling(verdict=verdict, summary=summary, evidence=evidence, hint=_HINT, command=_COMMAND)


CHECK = Check(
    id="IB001",
    name="ib-devices",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
