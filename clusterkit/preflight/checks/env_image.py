"""ENV003: whether every node has the job's image, and the same build of it."""

from __future__ import annotations

import shlex

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    NodeFacts,
    Ruling,
    Tier,
    missing,
    passed,
    uniform,
)
from clusterkit.preflight.probes.host.container import PROBE, is_file
from clusterkit.transport.probe import Missing, PreflightJob

_DISTRIBUTE = "clusterkit images distribute"

ABOUT = About(
    what="The image of the job is on every node, with the same digest.",
    why="A tag that was pulled on different days is different software on different nodes. A node"
    " that has to pull first keeps the others waiting, and a thousand at once bring down a"
    " registry.",
    how="docker image inspect, on the nodes and where preflight is run; of an image file its size"
    " and the hash of its first and last MiB; enroot list for unpacked images. Nothing is pulled.",
    fix="`clusterkit images distribute` brings this machine's build to all nodes; or pull it by"
    " digest before the job, or keep one image file on a shared path.",
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
    yield from _compared(job, tuple(present))


def _compared(job: PreflightJob, present: tuple[NodeFacts, ...]) -> Judgement:
    """Compare the builds with each other, and with that of the machine that asks."""
    here = job.image_digest
    digests = {node.name: digest for node in present if (digest := _digest_of(node))}
    if here is None or not digests:
        same = "name it by digest, or by one shared file"
        yield from uniform(
            Evidence(job=job, nodes=present),
            PROBE,
            lambda container: container.digest,
            what="image file" if is_file(job) else "image",
            odd=Verdict.FAIL,
            hint=f"bring the same build to all nodes: {_DISTRIBUTE}, or {same}",
        )
        return
    # Where no node has the build of this machine, it may be this machine that is behind.
    builds = set(digests.values())
    odd = Verdict.FAIL if here in builds or len(builds) > 1 else Verdict.WARN
    for name, digest in digests.items():
        if digest == here:
            yield name, passed(f"image {digest}")
        else:
            yield (
                name,
                Ruling(
                    verdict=odd,
                    summary=f"image is {digest}, and {here} on the machine that asks",
                    hint="bring that build to the nodes, or pull theirs here",
                    command=f"{_DISTRIBUTE} {shlex.quote(job.image or '')}",
                ),
            )


def _digest_of(node: NodeFacts) -> str | None:
    facts = node.of(PROBE)
    return None if isinstance(facts, Missing) else facts.digest


def _lacking(job: PreflightJob) -> Ruling:
    # Docker pulls what it lacks; a file that is not there, nobody brings.
    pulled, image = job.container_runtime == "docker", shlex.quote(job.image or "")
    look = f"ls -l {image}" if is_file(job) else "enroot list"
    bring = f"{_DISTRIBUTE} {image}" if job.image_digest else f"docker pull {image}"
    return Ruling(
        verdict=Verdict.WARN if pulled else Verdict.FAIL,
        summary=f"image {job.image} is not there",
        hint="bring it to the node before the job starts",
        command=bring if pulled else look,
    )


CHECK = Check(
    id="ENV003",
    name="env-image",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
