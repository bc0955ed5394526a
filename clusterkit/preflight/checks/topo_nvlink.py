"""TOPO002: whether the NVLink mesh of every node is whole."""

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
    passed,
)
from clusterkit.preflight.probes.gpu.nvidia_topo import PROBE
from clusterkit.preflight.topology import (
    common_shape,
    count_warning,
    differences,
    islands,
    nvlink_warnings,
    nvlinks,
    typical,
)

ABOUT = About(
    what="Every GPU has the NVLinks that it has on most nodes, and on its own node no GPU is"
    " without NVLink while the others are joined all to all.",
    why="One GPU that falls back to PCIe makes every collective of the whole job run at PCIe"
    " speed, five to ten times slower, with no error message.",
    how="nvidia-smi topo -m: the NV# class of every pair of GPUs against that of most nodes, and"
    " against the other pairs of the same machine. Bridged pairs and hybrid cube meshes are uneven"
    " by design; they are judged against the other nodes only. Seven GPUs behind NVSwitch warn:"
    " such boards have eight.",
    fix="`nvidia-smi nvlink -s` names the links that are down. With NVSwitch, check"
    " nvidia-fabricmanager and reset the GPUs or reboot; after that it is a matter for the vendor.",
    source="facts of recorded machines: 12 links on A100, 18 on H100, H200, B200, 6 on V100",
)
_COMMAND = "nvidia-smi nvlink -s; systemctl status nvidia-fabricmanager"
_HINT = "look for links that are down; reset the GPUs or reboot, then report the node"


def judge(evidence: Evidence) -> Judgement:
    """Name the nodes that lack NVLinks."""
    facts, rulings = known(evidence, PROBE)
    yield from rulings
    shape = common_shape(tuple(facts.values()))
    alike = tuple(topology for topology in facts.values() if topology.names == shape)
    most = typical(alike) if len(facts) > 1 else {}
    for name, topology in facts.items():
        pairs = differences(topology, most) if topology.names == shape else ()
        odd = [pair for pair in pairs if nvlinks(pair.has) < nvlinks(pair.most)]
        if odd:
            first = odd[0]
            yield (
                name,
                _fail(
                    f"{first.a}-{first.b} is {first.has}, on most nodes {first.most}"
                    + (f" (and {len(odd) - 1} more pairs)" if len(odd) > 1 else ""),
                    ", ".join(f"{d.a}-{d.b} {d.has} (most: {d.most})" for d in odd[:8]),
                ),
            )
        elif found := nvlink_warnings(topology):
            yield name, _fail(found[0], "; ".join(found[1:]))
        elif few := count_warning(topology):
            yield (
                name,
                Ruling(verdict=Verdict.WARN, summary=few, command="nvidia-smi -L; lspci -d 10de:"),
            )
        elif islands(topology):
            yield name, passed("NVLink is whole")
        else:
            yield name, Ruling(verdict=Verdict.SKIP, summary="no NVLink between GPUs")


def _fail(summary: str, evidence: str) -> Ruling:
    return Ruling(
        verdict=Verdict.FAIL, summary=summary, evidence=evidence, hint=_HINT, command=_COMMAND
    )


CHECK = Check(
    id="TOPO002",
    name="topo-nvlink",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
