"""HOST015: whether clusterkit and the job's framework are the same on all nodes."""

from __future__ import annotations

from clusterkit.checks.base import About, Check, Evidence, Judgement, Ruling, Tier, uniform
from clusterkit.findings import Verdict
from clusterkit.probes.base import Missing, PreflightJob
from clusterkit.probes.job_python import PROBE, JobPython
from clusterkit.shell import quote_path

_NAMED = ("clusterkit", "submitit", "deepspeed", "horovod", "accelerate")

ABOUT = About(
    what="clusterkit, submitit and the job's framework have the same version on all nodes.",
    why="Tasks are handed over as pickles that another version may not read, and ranks of different"
    " framework versions disagree on what they exchange.",
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
    there = []
    for node in evidence.nodes:
        facts = node.of(PROBE)
        if facts is None:
            yield node.name, Ruling(verdict=Verdict.SKIP, summary="no interpreter")
        elif isinstance(facts, Missing) or job.framework not in {"deepspeed", "horovod"}:
            there.append(node)
        elif job.framework not in facts.packages:
            yield node.name, _lacking(job)
        else:
            there.append(node)
    yield from uniform(
        Evidence(job=job, nodes=tuple(there)),
        PROBE,
        _versions,
        what="packages",
        odd=Verdict.WARN,
        hint="use one environment on all nodes",
    )


def _versions(python: JobPython | None) -> str | None:
    packages = python.packages if python else {}
    return ", ".join(f"{name} {packages[name]}" for name in _NAMED if name in packages) or None


def _lacking(job: PreflightJob) -> Ruling:
    return Ruling(
        verdict=Verdict.FAIL,
        summary=f"{job.framework} is not installed for the job's Python",
        hint="install it there, or name another interpreter in `python:` of the cluster",
        command=f"{quote_path(job.python)} -m pip show {job.framework}",
    )


CHECK = Check(
    id="HOST015",
    name="host-packages",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
