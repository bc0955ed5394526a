"""GPU003: one model of GPU in the whole job."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    Tier,
    uniform,
)
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import NvidiaGpus
from clusterkit.transport.probe import Missing

_HINT = "a job runs at the pace of its slowest GPU: ask for one kind (constraint, partition, hosts)"


def _judge(evidence: Evidence) -> Judgement:
    yield from uniform(
        evidence, nvidia_gpus.PROBE, models, what="GPU model", odd=Verdict.FAIL, hint=_HINT
    )
    for node in evidence.nodes:
        facts = node.of(nvidia_gpus.PROBE)
        if not isinstance(facts, Missing) and len({gpu.name for gpu in facts.gpus}) > 1:
            summary = f"different GPUs in one node: {models(facts)}"
            yield (
                node.name,
                Ruling(verdict=Verdict.WARN, summary=summary, hint=_HINT, command="nvidia-smi -L"),
            )


def models(facts: NvidiaGpus) -> str | None:
    """Return the models of a node, each once."""
    return " + ".join(sorted({gpu.name for gpu in facts.gpus})) or None


CHECK = Check(
    id="GPU003",
    name="gpu-model",
    about=About(
        what="All GPUs of the job are of one model.",
        why="In data-parallel training every step waits for the slowest GPU, and the batch has to "
        "fit the smallest memory.",
        how="Column `name` of `nvidia-smi --query-gpu`, by majority over the nodes of the job.",
        fix="Restrict the job to nodes of one kind, or `--ignore gpu-model` where it is meant.",
        source="Majority vote over the nodes of the job; no list to keep.",
    ),
    probes=(nvidia_gpus.PROBE,),
    judge=_judge,
    tier=Tier.ROUND_TRIP,
)
