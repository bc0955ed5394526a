"""HOST014: whether torch, its CUDA and its NCCL are the same on all nodes, and fit the job."""

from __future__ import annotations

import dataclasses

from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote_path
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    Tier,
    missing,
    uniform,
)
from clusterkit.preflight.checks.by_package import lacking, needed
from clusterkit.preflight.probes.host.job_python import PROBE, JobPython
from clusterkit.transport.probe import Missing, PreflightJob

ABOUT = About(
    what="The job's interpreter has torch on every node: the same version, built for the same CUDA"
    " or ROCm, with the same NCCL, and with GPU support where the job uses GPUs.",
    why="Ranks of different NCCL versions hang or end with `unhandled system error`; a build for"
    " processors sees no GPU at all.",
    how="Read from torch/version.py and the metadata of the NCCL wheel: importing torch would take"
    " seconds a node.",
    fix="Install the same environment on all nodes, or put it on a shared file system.",
    source="NCCL documentation: all ranks of a communicator use the same version",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail nodes that lack torch or differ from the others."""
    job = evidence.job
    if job.container_runtime is not None:
        yield None, Ruling(verdict=Verdict.SKIP, summary="torch is the image's")
        return
    found = {node.name: node.of(PROBE) for node in evidence.nodes}
    have = any(isinstance(f, JobPython) and f.torch for f in found.values())
    there = []
    for node in evidence.nodes:
        facts = found[node.name]
        if isinstance(facts, Missing):
            yield node.name, missing(facts)
        elif facts is None:
            yield node.name, Ruling(verdict=Verdict.SKIP, summary="no interpreter")
        elif facts.torch is None and needed(job) == "torch":
            yield node.name, lacking(job)
        elif facts.torch is None and (have or job.framework == "deepspeed"):
            yield node.name, _bad(job, "torch is not installed for the job's Python")
        elif facts.torch is None:
            yield node.name, Ruling(verdict=Verdict.SKIP, summary="torch is not installed")
        elif facts.cuda is None and facts.hip is None and (verdict := wants_gpus(job)):
            what = f"torch {facts.torch} is a build without GPU support"
            what += f", and {job.gpu_use}" if job.gpu_use else ""
            yield node.name, dataclasses.replace(_bad(job, what), verdict=verdict)
        else:
            there.append(node)
    yield from uniform(
        Evidence(job=job, nodes=tuple(there)),
        PROBE,
        _versions,
        what="torch",
        odd=Verdict.FAIL,
        hint="use one environment on all nodes",
    )


def wants_gpus(job: PreflightJob) -> Verdict | None:
    """Return how bad a build for CPUs is; a plain shell may have another one than the job."""
    if job.uses_gpus:
        return Verdict.WARN if job.python_is_set_up else Verdict.FAIL
    return Verdict.WARN if job.gpu_use else None


def _versions(python: JobPython | None) -> str | None:
    if python is None or python.torch is None:
        return None
    device = f"CUDA {python.cuda}" if python.cuda else f"ROCm {python.hip}" if python.hip else "CPU"
    return f"{python.torch}, {device}" + (f", NCCL {python.nccl}" if python.nccl else "")


def _bad(job: PreflightJob, summary: str) -> Ruling:
    return Ruling(
        verdict=Verdict.FAIL,
        summary=summary,
        hint="install the torch that the other nodes or the GPUs need",
        command=f"{quote_path(job.python)} -c 'import torch; print(torch.__version__)'",
    )


CHECK = Check(
    id="HOST014",
    name="host-torch",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
