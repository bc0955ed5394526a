"""IB007: whether RoCE ports have the address that NCCL will use."""

from __future__ import annotations

import re

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.probes.net.rdma import Port, Rdma
from clusterkit.preflight.probes.net.rdma_ports import PROBE
from clusterkit.preflight.topology import parse_hca_filter
from clusterkit.transport.probe import PreflightJob

ABOUT = About(
    what="Every active RoCE port that NCCL may use has a routable RoCE v2 address (GID); and where"
    " NCCL_IB_GID_INDEX is set, one of type RoCE v2 at that index.",
    why="Connections over a missing or link-local GID, or over RoCE v1 on a routed network, time"
    " out at start. The index of a GID often differs between nodes and changes with an IP address.",
    how="/sys/class/infiniband/*/ports/*/gids and gid_attrs/types of ports with link layer"
    " Ethernet, of the devices that NCCL_IB_HCA takes (all, where it is not set).",
    fix="Give the interface its IP address. Unset NCCL_IB_GID_INDEX: NCCL 2.21 and later finds the"
    " index by itself.",
    source="NCCL environment reference, NCCL_IB_GID_INDEX; docs.kernel.org, sysfs-class-infiniband",
)
_LINK_LOCAL = "fe80:"


def judge(evidence: Evidence) -> Judgement:
    """Name the ports without the GID that they need."""
    yield from each(evidence, PROBE, lambda rdma: _rule(rdma, evidence.job))


def _rule(rdma: Rdma, job: PreflightJob) -> Ruling:
    wanted = parse_hca_filter(job.env.get("NCCL_IB_HCA", ""))
    ports = [
        port
        for port in rdma.ports
        if port.active and port.layer == "Ethernet" and wanted.takes(port.device, port.number)
    ]
    if not any(port.gids for port in ports):
        why = "GIDs of RoCE ports are not known" if ports else "no RoCE port in use"
        return Ruling(verdict=Verdict.SKIP, summary=why)
    value = job.env.get("NCCL_IB_GID_INDEX", "")
    # Anything but a number is the lint's business; -1 lets NCCL choose.
    if re.fullmatch(r"[0-9]{1,3}", value) and (bad := _wrong_at(ports, int(value))):
        return Ruling(
            verdict=Verdict.FAIL,
            summary=f"no RoCE v2 GID at index {value} of {bad[0].name}",
            evidence="; ".join(f"{port.name}: {_text(port)}" for port in bad),
            hint="unset NCCL_IB_GID_INDEX: NCCL 2.21 and later chooses",
            command="show_gids",
        )
    lacking = [port for port in ports if not _routable(port)]
    if lacking:
        return Ruling(
            verdict=Verdict.WARN,
            summary=f"no routable RoCE v2 GID on {','.join(port.name for port in lacking)}",
            evidence="; ".join(f"{port.name}: {_text(port)}" for port in lacking),
            hint="give its interface an IP address, or leave the device out of NCCL_IB_HCA",
            command="show_gids; ip address",
        )
    return passed("RoCE ports have routable v2 GIDs")


def _wrong_at(ports: list[Port], index: int) -> list[Port]:
    return [
        port
        for port in ports
        if not any(gid.index == index and gid.kind == "RoCE v2" for gid in port.gids)
    ]


def _routable(port: Port) -> bool:
    return any(gid.kind == "RoCE v2" and not gid.value.startswith(_LINK_LOCAL) for gid in port.gids)


def _text(port: Port) -> str:
    return ", ".join(f"{gid.index} {gid.kind}" for gid in port.gids[:6]) or "no GID"


CHECK = Check(id="IB007", name="ib-roce-gid", about=ABOUT, probes=(PROBE,), judge=judge)
