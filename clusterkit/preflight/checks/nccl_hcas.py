"""NCCL004: HCAs that variables name, and InfiniBand switched off where it is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    missing,
    passed,
)
from clusterkit.preflight.checks.nccl_evidence import in_force
from clusterkit.preflight.env_lint.matching import select
from clusterkit.preflight.env_lint.rules.base import strtoll
from clusterkit.preflight.probes.host.nccl_settings import CONF, ENVIRONMENT
from clusterkit.preflight.probes.net.rdma import Rdma
from clusterkit.preflight.probes.net.rdma_ports import PROBE as PORTS
from clusterkit.transport.probe import Missing

ABOUT = About(
    what="HCAs named by NCCL_IB_HCA and UCX_NET_DEVICES exist on the node, with an active port; "
    "InfiniBand is not switched off where the node has it.",
    why="NCCL leaves out names that match nothing, and without any HCA left falls back to TCP, "
    "ten times slower. UCX fails.",
    how="/sys/class/infiniband. NCCL's names are prefixes unless the list starts with `=`.",
    fix="Name HCAs that every node has (see TOPO005), or unset the variable.",
    source="NCCL sources, src/misc/utils.cc; NCCL environment reference",
)

_SWITCHES = ("NCCL_IB_DISABLE", "NCCL_NET")


def judge(evidence: Evidence) -> Judgement:
    """Compare names and devices, node by node."""
    for node in evidence.nodes:
        settings = in_force(evidence.job, node)
        names = ("NCCL_IB_HCA", "UCX_NET_DEVICES", *_SWITCHES)
        given = {name: settings[name] for name in names if settings.get(name)}
        for name in _SWITCHES:
            if any(fnmatchcase(name, glob) for glob in evidence.job.allowed_names):
                given.pop(name, None)
        facts = node.of(PORTS)
        if not given:
            yield node.name, Ruling(verdict=Verdict.SKIP, summary="no variable is about HCAs")
        elif isinstance(facts, Missing) and not (
            facts.verdict is Verdict.SKIP and "NCCL_IB_HCA" in given
        ):
            yield node.name, missing(facts)
        else:
            rdma = Rdma(devices=()) if isinstance(facts, Missing) else facts
            found = tuple(_rulings(given, rdma))
            for ruling in found or (passed("what variables say about HCAs fits the node"),):
                yield node.name, ruling


def _rulings(given: Mapping[str, str], rdma: Rdma) -> Iterator[Ruling]:
    names = [device.name for device in rdma.devices]
    active = {d.name for d in rdma.devices if any(p.state == "active" for p in d.ports)}
    evidence = f"here: {', '.join(names) or 'none'}; active: {', '.join(sorted(active)) or 'none'}"
    for name, value in given.items():
        said = f"{name}={value}"
        if name in _SWITCHES:
            off = value.lower() == "socket" if name == "NCCL_NET" else strtoll(value)[0] == 1
            if active and off:
                hint = f"remove {said}"
                yield _ruling(Verdict.FAIL, f"{said} on a node with active HCAs", evidence, hint)
            continue
        if name == "UCX_NET_DEVICES" and (value == "all" or "mlx" not in value):
            continue
        selection = select(value, names, exact=name == "UCX_NET_DEVICES")
        hint = f"set {name} to HCAs that every node has"
        lost = () if selection.exclude else selection.unmatched
        idle = [item for item in selection.taken if item not in active]
        if not set(selection.taken) & active:
            yield _ruling(Verdict.FAIL, f"{said}: takes no active HCA", evidence, hint)
        elif lost:
            yield _ruling(Verdict.FAIL, f"{said}: no HCA {', '.join(lost)}", evidence, hint)
        elif idle and not selection.exclude:
            summary = f"{said}: {', '.join(idle)} has no active port"
            yield _ruling(Verdict.WARN, summary, evidence, hint)
        for item, matched in selection.surprises.items():
            summary = f"{said}: {item} is a prefix, it matches {', '.join(matched)}"
            yield _ruling(Verdict.WARN, summary, evidence, "start the list with =")


def _ruling(verdict: Verdict, summary: str, evidence: str, hint: str) -> Ruling:
    return Ruling(
        verdict=verdict, summary=summary, evidence=evidence, hint=hint, command="ibv_devinfo -l"
    )


CHECK = Check(
    id="NCCL004", name="nccl-hcas", about=ABOUT, probes=(PORTS, ENVIRONMENT, CONF), judge=judge
)
