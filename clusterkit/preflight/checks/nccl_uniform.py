"""NCCL005: variables whose values differ between the nodes."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    Tier,
    majority,
    missing,
    passed,
)
from clusterkit.preflight.checks.nccl_evidence import in_force
from clusterkit.preflight.probes.host.nccl_settings import CONF, ENVIRONMENT
from clusterkit.transport.probe import Missing

ABOUT = About(
    what="Every node has the same NCCL, Gloo, UCX and libfabric variables; names of interfaces and "
    "HCAs may differ.",
    why="Ranks that disagree about algorithms, buffers or transports hang or fail at start.",
    how="The environment and nccl.conf of every node, below what the job sets; majority vote.",
    fix="Set the variable for the job (`env` of the cluster), or mend the odd node.",
    source="NCCL environment reference: most variables have to be equal on all ranks",
)

_MAY_DIFFER = frozenset(
    {
        "NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME",
        "NCCL_IB_HCA", "UCX_NET_DEVICES", "NCCL_HOSTID", "NCCL_TOPO_FILE", "NCCL_CONF_FILE",
        "NCCL_DEBUG_FILE", "CUDA_VISIBLE_DEVICES",
    }
)  # fmt: skip


def judge(evidence: Evidence) -> Judgement:
    """Compare the nodes, variable by variable."""
    known: dict[str, dict[str, str]] = {}
    for node in evidence.nodes:
        lacking = [f for f in (node.of(ENVIRONMENT), node.of(CONF)) if isinstance(f, Missing)]
        if lacking:
            yield node.name, missing(lacking[0])
            continue
        settings = in_force(evidence.job, node)
        known[node.name] = {n: v for n, v in settings.items() if n not in _MAY_DIFFER}
    odd: dict[str, list[Ruling]] = {name: [] for name in known}
    for variable in dict.fromkeys(n for settings in known.values() for n in settings):
        values = {name: _said(settings.get(variable)) for name, settings in known.items()}
        if len(set(values.values())) == 1:
            continue
        usual = majority(values)
        for name, value in values.items():
            if usual is None:
                odd[name].append(
                    _ruling(f"{variable} differs, and no value has a majority", values)
                )
            elif value != usual:
                said = f"{variable} is {value}, on most nodes {usual}"
                odd[name].append(_ruling(said, values))
    for name, rulings in odd.items():
        for ruling in rulings or [passed("the same variables as most nodes")]:
            yield name, ruling


def _said(value: str | None) -> str:
    return "not set" if value is None else repr(value)


def _ruling(summary: str, values: dict[str, str]) -> Ruling:
    return Ruling(
        verdict=Verdict.FAIL,
        summary=summary,
        evidence=f"values: {', '.join(sorted(set(values.values())))}",
        hint="set it for the whole job, or mend the odd nodes",
    )


CHECK = Check(
    id="NCCL005",
    name="nccl-uniform",
    about=ABOUT,
    probes=(ENVIRONMENT, CONF),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
