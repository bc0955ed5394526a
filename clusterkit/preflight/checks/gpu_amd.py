"""GPU023: AMD GPUs are there, and alike on all nodes."""

from __future__ import annotations

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
    uniform,
)
from clusterkit.preflight.probes.gpu import amd_gpus
from clusterkit.preflight.probes.gpu.amd_gpus import AmdGpus

_HINT = "run amd-smi there; leave the node out, or ask for fewer GPUs"
_COMMAND = "amd-smi list || rocm-smi"
_PART = Part(name="AMD GPU", hint=_HINT, command="lspci -d 1002:")


def _judge(evidence: Evidence) -> Judgement:
    wanted = evidence.job.gpus_per_node
    if wanted is None:
        yield from uniform(
            evidence,
            amd_gpus.PROBE,
            _gpus,
            what="AMD GPUs",
            odd=Verdict.FAIL,
            hint=_HINT,
            part=_PART,
        )
        return
    found, rulings = known(evidence, amd_gpus.PROBE, part=_PART)
    yield from rulings
    for name, facts in found.items():
        summary = f"{_gpus(facts)}, the job wants {wanted}"
        if len(facts.gpus) < wanted:
            yield (
                name,
                Ruling(verdict=Verdict.FAIL, summary=summary, hint=_HINT, command=_COMMAND),
            )
        else:
            yield name, passed(_gpus(facts))


def _gpus(facts: AmdGpus) -> str:
    names = " + ".join(sorted({gpu.name or "AMD GPU" for gpu in facts.gpus}))
    return f"{len(facts.gpus)} x {names}"


CHECK = Check(
    id="GPU023",
    name="gpu-amd",
    about=About(
        what="Every node has the AMD GPUs that the job wants, or the same as most nodes.",
        why="A rank without a GPU dies at its first HIP call, and the job with it.",
        how="`amd-smi static --json`, else `rocm-smi --showproductname --json`, counted.",
        fix="Take the node out of the job, or ask for fewer GPUs a node.",
        source="Majority vote over the nodes of the job; no list to keep.",
    ),
    probes=(amd_gpus.PROBE,),
    judge=_judge,
    tier=Tier.ROUND_TRIP,
)
