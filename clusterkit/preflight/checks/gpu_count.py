"""GPU002: every node has the GPUs that the job wants, or as many as most nodes have."""

from __future__ import annotations

import re

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    NodeFacts,
    Part,
    Ruling,
    Tier,
    known,
    majority,
    missing,
    passed,
)
from clusterkit.preflight.probes.gpu import amd_gpus, nvidia_list
from clusterkit.preflight.probes.gpu.nvidia_list import NvidiaList
from clusterkit.transport.probe import Missing

_COMMAND = "nvidia-smi -L"
_BOARD = 8
_ON_BOARDS = re.compile(r"SXM|HBM3|\b[BH]\d00$|\bH20\b")
"""Names of GPUs that come eight to a board, not as PCIe cards."""
_HINT = "look for a GPU that fell off the bus, or ask for fewer with --gpus-per-node"
_PART = Part(
    name="NVIDIA GPU",
    hint="look for GPUs that fell off the bus, or take the node out of the job",
    command="lspci -d 10de:",
)


def _judge(evidence: Evidence) -> Judgement:
    found, rulings = known(evidence, nvidia_list.PROBE, part=_PART)
    without = dict(rulings)
    wanted = evidence.job.gpus_per_node
    for node in evidence.nodes:
        if node.name in without:
            none = _none(node, wanted) if evidence.job.uses_gpus and wanted else None
            yield node.name, none or without[node.name]
    counts = {name: sum(len(gpu.mig) or 1 for gpu in facts.gpus) for name, facts in found.items()}
    usual = majority(counts)
    for name, count in counts.items():
        if wanted is not None and count < wanted:
            yield name, _short(count, f"the job wants {wanted}")
        elif wanted is None and usual is not None and count < usual:
            yield name, _short(count, f"most nodes have {usual}")
        elif (usual is not None and count != usual) or (wanted is None and _one_short(found[name])):
            than = f"most nodes have {usual}" if count != usual else "such boards have 8"
            summary = f"{_gpus(count)}, {than}"
            yield name, Ruling(verdict=Verdict.WARN, summary=summary, command=_COMMAND)
        else:
            yield name, passed(_gpus(count))


def _none(node: NodeFacts, wanted: int) -> Ruling | None:
    """Rule on a node without an NVIDIA GPU for a job that has asked for GPUs, of any vendor."""
    nvidia, amd = node.of(nvidia_list.PROBE), node.of(amd_gpus.PROBE)
    if not isinstance(nvidia, Missing) or nvidia.verdict is not Verdict.SKIP:
        return None
    if not isinstance(amd, Missing):
        return None
    if amd.verdict is not Verdict.SKIP:
        return missing(amd)
    return _short(0, f"the job wants {wanted}")


def _one_short(facts: NvidiaList) -> bool:
    """Tell whether one of the eight GPUs of a board is missing, on all nodes alike."""
    return len(facts.gpus) == _BOARD - 1 and all(_ON_BOARDS.search(gpu.name) for gpu in facts.gpus)


def _short(count: int, than: str) -> Ruling:
    return Ruling(
        verdict=Verdict.FAIL,
        summary=f"{_gpus(count)}, {than}",
        hint=_HINT,
        command=_COMMAND,
    )


def _gpus(count: int) -> str:
    return f"{count or 'no'} GPU{'s' if count > 1 else ''}"


CHECK = Check(
    id="GPU002",
    name="gpu-count",
    about=About(
        what="Every node shows as many GPUs as the job starts processes on it; where that is not "
        "known, as many as most nodes of the job.",
        why="A rank without a GPU dies at its first CUDA call, and the job with it.",
        how="Lines of `nvidia-smi -L` that begin with a GPU; a GPU in MIG mode counts as its MIG "
        "devices. Inside a Slurm job only the job's own GPUs may be seen. A node without any is "
        "skipped where no node has one and `--gpus-per-node` does not ask for some. Seven of "
        "those that come eight to a board warn where nothing says how many are wanted.",
        fix="Take the node out of the job (--exclude), or ask for fewer GPUs a node.",
        source="Counting all lines of `nvidia-smi -L` takes MIG devices for GPUs, as several "
        "health checks in the field do.",
    ),
    probes=(nvidia_list.PROBE, amd_gpus.PROBE),
    judge=_judge,
    tier=Tier.ROUND_TRIP,
)
