"""HOST013: whether the job's interpreter is on every node, and the same."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote_path
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    Tier,
    uniform,
)
from clusterkit.preflight.probes.host.job_python import PROBE
from clusterkit.transport.probe import Missing, PreflightJob

ABOUT = About(
    what="The job's interpreter is on every node, in the same version.",
    why="A node without it ends at once and takes the job with it. Pickles and compiled packages"
    " of one Python version do not work in another.",
    how="The interpreter of the job is started on each node and says its version.",
    fix="Put the environment on a file system that all nodes share, or install it on each; name it"
    " by its whole path in `python:` of the cluster.",
    source="Python documentation, pickle and the stable ABI; majority vote over the nodes",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail nodes without the interpreter or with another version of it."""
    job = evidence.job
    if job.container_runtime is not None:
        yield None, Ruling(verdict=Verdict.SKIP, summary="the interpreter is the image's")
        return
    found = {node.name: node.of(PROBE) for node in evidence.nodes}
    anywhere = any(f is not None and not isinstance(f, Missing) for f in found.values())
    for name, facts in found.items():
        if facts is None:
            yield name, _absent(job, anywhere=anywhere)
    there = [node for node in evidence.nodes if found[node.name] is not None]
    yield from uniform(
        Evidence(job=job, nodes=tuple(there)),
        PROBE,
        lambda python: python.version if python else None,
        what="Python",
        odd=Verdict.FAIL,
        hint="use one environment on all nodes",
    )


def _absent(job: PreflightJob, *, anywhere: bool) -> Ruling:
    # A bare name that no node has may come from modules, which a plain shell has not loaded.
    known = anywhere or "/" in job.python
    return Ruling(
        verdict=Verdict.FAIL if known else Verdict.WARN,
        summary=f"{job.python} is not there" + ("" if known else " in a plain shell"),
        hint="name the interpreter by its whole path in `python:` of the cluster",
        command=f"command -v {quote_path(job.python)}",
    )


CHECK = Check(
    id="HOST013",
    name="host-python",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
