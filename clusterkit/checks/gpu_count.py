"""GPU002: every node has the GPUs that the job wants, or as many as most nodes have."""

from __future__ import annotations

from clusterkit.checks.base import (
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
from clusterkit.findings import Verdict
from clusterkit.probes import nvidia_list
from clusterkit.probes.base import Missing


def _judge(evidence: Evidence) -> Judgement:
    counts: dict[str, int] = {}
    for node in evidence.nodes:
        facts = node.of(nvidia_list.PROBE)
        if isinstance(facts, Missing):
            yield node.name, missing(facts)
        else:
            counts[node.name] = sum(len(gpu.mig) or 1 for gpu in facts.gpus)
    wanted = evidence.job.gpus_per_node
    usual = majority(counts)
    for name, count in counts.items():
        if wanted is not None and count < wanted:
            yield name, _short(count, f"the job wants {wanted}")
        elif wanted is None and usual is not None and count < usual:
            yield name, _short(count, f"most nodes have {usual}")
        elif usual is not None and count != usual:
            summary = f"{_gpus(count)}, most nodes have {usual}"
            yield name, Ruling(verdict=Verdict.WARN, summary=summary, command=_COMMAND)
        else:
            yield name, passed(_gpus(count))


_COMMAND = "nvidia-smi -L"


def _short(count: int, than: str) -> Ruling:
    return Ruling(
        verdict=Verdict.FAIL,
        summary=f"{_gpus(count)}, {than}",
        hint="look for a GPU that fell off the bus, or ask for fewer with --gpus-per-node",
        command=_COMMAND,
    )


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


CHECK = Check(
    id="GPU002",
    name="gpu-count",
    about=About(
        what="Every node shows as many GPUs as the job starts processes on it; where that is not "
        "known, as many as most nodes of the job.",
        why="A rank without a GPU dies at its first CUDA call, and the job with it.",
        how="Lines of `nvidia-smi -L` that begin with a GPU; a GPU in MIG mode counts as its MIG "
        "devices. Inside a Slurm job only the job's own GPUs may be seen.",
        fix="Take the node out of the job (--exclude), or ask for fewer GPUs a node.",
        source="Counting all lines of `nvidia-smi -L` takes MIG devices for GPUs, as several "
        "health checks in the field do.",
    ),
    probes=(nvidia_list.PROBE,),
    judge=_judge,
    tier=Tier.ROUND_TRIP,
)
