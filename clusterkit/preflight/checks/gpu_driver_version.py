"""GPU004: one driver version on all nodes."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Tier, uniform
from clusterkit.preflight.probes.gpu import nvidia_gpus
from clusterkit.preflight.probes.gpu.nvidia_gpus import NvidiaGpus


def _judge(evidence: Evidence) -> Judgement:
    return uniform(
        evidence,
        nvidia_gpus.PROBE,
        _version,
        what="driver version",
        odd=Verdict.FAIL,
        hint="install the driver that most nodes have, then reboot; or leave the node out",
    )


def _version(facts: NvidiaGpus) -> str | None:
    if facts.driver is None:
        return None
    return facts.driver + (f" (CUDA {facts.cuda})" if facts.cuda else "")


CHECK = Check(
    id="GPU004",
    name="gpu-driver-version",
    about=About(
        what="All nodes run the same NVIDIA driver, and so the same newest CUDA version.",
        why="With mixed drivers NCCL may choose different features on each side and hang or fail "
        "while it starts; a container may start on one node and not on the next.",
        how="`driver_version` of `nvidia-smi --query-gpu` and CUDA Version of `nvidia-smi -q`, by "
        "majority over the nodes of the job.",
        fix="Update the odd nodes; a node whose update was not followed by a reboot shows too.",
        source="Majority vote over the nodes of the job; no list to keep.",
    ),
    probes=(nvidia_gpus.PROBE,),
    judge=_judge,
    tier=Tier.ROUND_TRIP,
)
