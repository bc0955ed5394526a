"""NCCL006: NVLink switched off by a variable on a node that has it."""

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
from clusterkit.preflight.env_lint.rules.base import strtoll
from clusterkit.preflight.probes.gpu.nvidia_topo import PROBE
from clusterkit.preflight.probes.host.nccl_settings import CONF, ENVIRONMENT
from clusterkit.preflight.topology import Topology, nvlinks
from clusterkit.transport.probe import Missing

_P2P = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
_SHM = "NCCL_SHM_DISABLE"

ABOUT = About(
    what="NCCL_P2P_DISABLE and NCCL_P2P_LEVEL do not switch off NVLink where GPUs have it, nor"
    " NCCL_SHM_DISABLE shared memory where some pairs of them have no NVLink.",
    why="Mostly the rest of a search for a fault long ago. Without peer-to-peer, GPUs that NVLink"
    " joins talk through host memory, ten times slower and more; without that too, through the"
    " network, inside of one node.",
    how="The variables as a process of the job would see them on the node, and nvidia-smi topo -m.",
    fix="Remove the variable. Where peer-to-peer really is broken, leave the node out.",
    source="NCCL environment reference: SHM is used where peer-to-peer cannot happen, the network"
    " where SHM is off too; src/graph/paths.cc",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail nodes whose NVLink is there and not used."""
    for node in evidence.nodes:
        off = tuple(_switches(in_force(evidence.job, node), evidence.job.allowed_names))
        topology = node.of(PROBE)
        if not off:
            summary = "no variable switches NVLink off"
            yield node.name, Ruling(verdict=Verdict.SKIP, summary=summary)
        elif isinstance(topology, Missing):
            yield node.name, missing(topology)
        else:
            yield node.name, _rule(off, topology)


def _switches(settings: Mapping[str, str], allowed: tuple[str, ...]) -> Iterator[str]:
    for name in (*_P2P, _SHM):
        value = settings.get(name, "")
        # NCCL reads both switches as 1 or not 1; a level below the first one lets no pair through.
        off = value in {"LOC", "0"} if name == _P2P[1] else strtoll(value)[0] == 1
        if off and not any(fnmatchcase(name, glob) for glob in allowed):
            yield f"{name}={value}"


def _rule(off: tuple[str, ...], topology: Topology) -> Ruling:
    links = [nvlinks(link) for _, _, link in topology.gpu_pairs()]
    if not any(links):
        return Ruling(verdict=Verdict.SKIP, summary="no NVLink between GPUs")
    lost = [said for said in off if said.startswith(_P2P) or not all(links)]
    if not lost:
        return passed("NVLink is not switched off", ", ".join(off))
    said = " and ".join(lost)
    return Ruling(
        verdict=Verdict.FAIL,
        summary=f"{said} on a node with NVLink",
        evidence=f"{sum(map(bool, links))} of {len(links)} pairs of GPUs have NVLink",
        hint=f"remove {said}",
        command="nvidia-smi topo -m; env | grep NCCL_; cat /etc/nccl.conf ~/.nccl.conf",
    )


CHECK = Check(
    id="NCCL006", name="nccl-nvlink", about=ABOUT, probes=(PROBE, ENVIRONMENT, CONF), judge=judge
)
