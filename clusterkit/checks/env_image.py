"""ENV003: whether every node has the job's image, and the same build of it."""

from __future__ import annotations

import shlex

from clusterkit.checks.base import About, Check, Evidence, Judgement, Ruling, Tier, missing, uniform
from clusterkit.findings import Verdict
from clusterkit.probes.base import Missing, PreflightJob
from clusterkit.probes.container import PROBE, Container, is_file

ABOUT = About(
    what="The image of the job is on every node, with the same digest.",
    why="A tag that was pulled on different days is different software on different nodes. A node"
    " that has to pull first keeps the others waiting, and a thousand at once bring down a"
    " registry.",
    how="docker image inspect; of an image file its size and the hash of its first and last MiB;"
    " enroot list for unpacked images. Nothing is pulled.",
    fix="Pull it by digest on all nodes before the job, or keep one image file on a shared path.",
    source="Docker documentation on image digests; apptainer and enroot on image files",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail other builds; warn where the image has to be pulled first."""
    job = evidence.job
    if job.container_runtime is None or not job.image:
        yield None, Ruling(verdict=Verdict.SKIP, summary="the job has no image")
        return
    present = []
    for node in evidence.nodes:
        facts = node.of(PROBE)
        if isinstance(facts, Missing):
            yield node.name, missing(facts)
        elif not facts.installed:
            yield node.name, Ruling(verdict=Verdict.UNKNOWN, summary="the runtime is not installed")
        elif facts.digest is None:
            yield node.name, Ruling(verdict=Verdict.SKIP, summary="fetched when the job starts")
        elif not facts.digest and not facts.version:
            yield node.name, Ruling(verdict=Verdict.UNKNOWN, summary="the runtime does not work")
        elif not facts.digest:
            yield node.name, _lacking(job)
        else:
            present.append(node)
    yield from uniform(
        Evidence(job=job, nodes=tuple(present)),
        PROBE,
        _digest,
        what="image file" if is_file(job) else "image",
        odd=Verdict.FAIL,
        hint="bring the same build to all nodes: name it by digest, or by one shared file",
    )


def _digest(container: Container) -> str | None:
    return container.digest


def _lacking(job: PreflightJob) -> Ruling:
    # Docker pulls what it lacks; a file that is not there, nobody brings.
    pulled, image = job.container_runtime == "docker", shlex.quote(job.image or "")
    look = f"ls -l {image}" if is_file(job) else "enroot list"
    return Ruling(
        verdict=Verdict.WARN if pulled else Verdict.FAIL,
        summary=f"image {job.image} is not there",
        hint="bring it to the node before the job starts",
        command=f"docker pull {image}" if pulled else look,
    )


CHECK = Check(
    id="ENV003",
    name="env-image",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
