"""TOPO006: whether the NUMA nodes of the GPUs are known, consistent, and as on most nodes."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    Tier,
    known,
    majority,
    passed,
)
from clusterkit.preflight.probes.gpu.nvidia_topo import PROBE
from clusterkit.preflight.topology import Topology, numa_warning

ABOUT = About(
    what="The NUMA node of every GPU agrees with its PCIe links, and with that on most nodes.",
    why="Launchers and NCCL bind processes and buffers by it. A wrong or missing one puts a"
    " process on the far socket: slower copies, slower data loading.",
    how="nvidia-smi topo -m, column NUMA Affinity.",
    fix="Look at the BIOS settings for NUMA (nodes per socket, sub-NUMA clustering) and update the"
    " BIOS; in virtual machines the host has to pass the layout on.",
    source="legend of nvidia-smi topo -m: only SYS leaves a NUMA node",
)


def judge(evidence: Evidence) -> Judgement:
    """Warn of GPUs on NUMA nodes that cannot be right, or are not those of most nodes."""
    facts, rulings = known(evidence, PROBE)
    yield from rulings
    layouts = {name: _layout(t) for name, t in facts.items() if any(_layout(t))}
    usual = majority(layouts)
    for name, topology in facts.items():
        layout = _layout(topology)
        if name not in layouts:
            yield name, Ruling(verdict=Verdict.SKIP, summary="NUMA nodes of GPUs are not known")
        elif odd := numa_warning(topology):
            yield name, _warn(odd, _text(layout))
        elif usual is not None and layout != usual and len(layout) == len(usual):
            most = f"{_text(layout)}; most nodes: {_text(usual)}"
            yield name, _warn("GPUs are on other NUMA nodes than on most nodes", most)
        else:
            yield name, passed("NUMA nodes of the GPUs are consistent")


def _layout(topology: Topology) -> tuple[str | None, ...]:
    return tuple(affinity.numa for affinity in topology.affinity)


def _text(layout: tuple[str | None, ...]) -> str:
    return "NUMA " + ",".join(node or "-" for node in layout)


def _warn(summary: str, evidence: str) -> Ruling:
    return Ruling(
        verdict=Verdict.WARN,
        summary=summary,
        evidence=evidence,
        hint="compare the BIOS settings for NUMA with a node that is fine",
        command="lscpu | grep NUMA; nvidia-smi topo -m",
    )


CHECK = Check(
    id="TOPO006",
    name="topo-numa",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
