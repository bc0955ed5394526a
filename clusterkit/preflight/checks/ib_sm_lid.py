"""IB004: whether a subnet manager looks after every InfiniBand port."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.probes.net.rdma import Rdma
from clusterkit.preflight.probes.net.rdma_ports import PROBE

ABOUT = About(
    what="Every InfiniBand port whose link is up knows its subnet manager (SM lid is not 0).",
    why="Without one no route exists: connections fail although the link is up.",
    how="/sys/class/infiniband/*/ports/*/sm_lid, on link layer InfiniBand only; it is 0 on"
    " Ethernet (RoCE) by nature.",
    fix="Start opensm on the fabric or look at the managed switch: `sminfo`, `ibstat`.",
    source="InfiniBand architecture, PortInfo.MasterSMLID",
)


def judge(evidence: Evidence) -> Judgement:
    """Name the ports without a subnet manager."""
    yield from each(evidence, PROBE, _rule)


def _rule(rdma: Rdma) -> Ruling:
    up = [port for port in rdma.ports if port.layer == "InfiniBand" and port.state != "down"]
    ports = [port for port in up if port.sm_lid is not None]
    if not ports:
        why = "SM lids are not told" if up else "no InfiniBand link is up"
        return Ruling(verdict=Verdict.SKIP, summary=why)
    lost = [port.name for port in ports if port.sm_lid == 0]
    if not lost:
        return passed("InfiniBand ports know their subnet manager")
    return Ruling(
        verdict=Verdict.FAIL,
        summary=f"no subnet manager for {','.join(lost)}",
        evidence="SM lid 0",
        hint="see whether opensm or the switch's subnet manager runs",
        command="sminfo; ibstat",
    )


CHECK = Check(id="IB004", name="ib-sm-lid", about=ABOUT, probes=(PROBE,), judge=judge)
