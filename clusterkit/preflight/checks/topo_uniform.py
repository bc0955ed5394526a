"""TOPO001: whether the nodes have the same devices, joined by PCIe in the same way."""

from __future__ import annotations

from collections.abc import Mapping

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
    passed,
)
from clusterkit.preflight.probes.gpu.nvidia_topo import PROBE
from clusterkit.preflight.topology import Topology, common_shape, differences, typical

ABOUT = About(
    what="All nodes have the same GPUs and NICs, and each pair is joined by PCIe in the same way.",
    why="A step is as fast as the slowest node. A card in another slot, or a NIC that is missing,"
    " costs one node bandwidth without any error message.",
    how="nvidia-smi topo -m on every node; each pair of devices is compared with what most nodes"
    " have. NVLink is judged by TOPO002.",
    fix="Compare `lspci -tv` of the node with that of its neighbours: a card in the wrong slot, a"
    " NIC that did not come up, another BIOS setting. In a job's allocation, check that every node"
    " gives the job the same number of GPUs.",
    source="majority of the job's own nodes; classes: legend of nvidia-smi topo -m",
)
_COMMAND = "nvidia-smi topo -m"
_HINT = "compare `lspci -tv` with a node that is fine"
_PART = Part(name="NVIDIA GPU", hint=_HINT, command="lspci -d 10de:")


def judge(evidence: Evidence) -> Judgement:
    """Name the nodes whose matrix is not that of most."""
    facts, rulings = known(evidence, PROBE, part=_PART)
    yield from rulings
    if len(facts) < 2:
        for name in facts:
            yield name, Ruling(verdict=Verdict.SKIP, summary="no other node to compare with")
        return
    shape = common_shape(tuple(facts.values()))
    alike = {name: topology for name, topology in facts.items() if topology.names == shape}
    most = typical(tuple(alike.values()))
    for name, topology in facts.items():
        if shape is None:
            yield name, _warn("nodes differ in their GPUs and NICs, none is usual", _devices(facts))
        elif name not in alike:
            yield (
                name,
                _warn(
                    f"the matrix has {_count(topology.names)}, on most nodes {_count(shape)}", ""
                ),
            )
        else:
            odd = [pair for pair in differences(topology, most) if not pair.nvlink]
            shown = ", ".join(f"{d.a}-{d.b} {d.has} (most: {d.most})" for d in odd[:8])
            if odd:
                yield name, _warn(f"{len(odd)} PCIe links differ from most nodes", shown)
            else:
                yield name, passed("GPUs and NICs are joined as on most nodes")


def _count(names: tuple[str, ...]) -> str:
    gpus = sum(name.startswith("GPU") for name in names)
    return f"{gpus} GPUs and {len(names) - gpus} NICs"


def _devices(facts: Mapping[str, Topology]) -> str:
    return ", ".join(sorted({_count(topology.names) for topology in facts.values()}))


def _warn(summary: str, evidence: str) -> Ruling:
    return Ruling(
        verdict=Verdict.WARN, summary=summary, evidence=evidence, hint=_HINT, command=_COMMAND
    )


CHECK = Check(
    id="TOPO001",
    name="topo-uniform",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
