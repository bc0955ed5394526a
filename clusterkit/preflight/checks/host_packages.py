"""HOST015: whether clusterkit and the job's framework are the same on all nodes."""

from __future__ import annotations

from collections.abc import Sequence

from clusterkit.core.distribution import DISTRIBUTION
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
from clusterkit.preflight.checks.by_package import lacking, needed
from clusterkit.preflight.probes.host.job_python import PROBE, JobPython
from clusterkit.transport.probe import Missing

_NAMED = (DISTRIBUTION, "submitit", "deepspeed", "horovod", "accelerate")

ABOUT = About(
    what="The job's framework is installed on all nodes, and has the same version there, as have"
    " clusterkit and submitit.",
    why="A node without it ends at once and takes the job with it. Tasks are handed over as pickles"
    " that another version may not read, and ranks of different framework versions disagree on what"
    " they exchange.",
    how="Metadata of the packages in the job's interpreter on each node.",
    fix="Install the same versions on all nodes, or put the environment on a shared file system.",
    source="majority vote over the nodes of the job",
)


def judge(evidence: Evidence) -> Judgement:
    """Compare the versions, and warn of a framework that is nowhere."""
    job = evidence.job
    if job.container_runtime is not None:
        yield None, Ruling(verdict=Verdict.SKIP, summary="the packages are the image's")
        return
    package = needed(job)
    also = (package,) if package not in {None, "torch", *_NAMED} else ()
    there = []
    for node in evidence.nodes:
        facts = node.of(PROBE)
        if facts is None:
            yield node.name, Ruling(verdict=Verdict.SKIP, summary="no interpreter")
        elif isinstance(facts, Missing) or package in {None, "torch", *facts.packages}:
            there.append(node)  # of torch, HOST014 tells
        else:
            yield node.name, lacking(job)
    yield from uniform(
        Evidence(job=job, nodes=tuple(there)),
        PROBE,
        lambda python: _versions(python, (*_NAMED, *also)),
        what="packages",
        odd=Verdict.WARN,
        hint="use one environment on all nodes",
    )


def _versions(python: JobPython | None, named: Sequence[str]) -> str | None:
    packages = python.packages if python else {}
    return ", ".join(f"{name} {packages[name]}" for name in named if name in packages) or None


CHECK = Check(
    id="HOST015",
    name="host-packages",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
