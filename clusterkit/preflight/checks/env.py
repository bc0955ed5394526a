"""ENV: container runtime, NVIDIA's toolkit for it, and the image of the job."""

from __future__ import annotations

import shlex

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import uniform
from clusterkit.preflight.checks.results import (
    Advice,
    Result,
    Results,
    fail,
    missing,
    ok,
    skip,
    unknown,
)
from clusterkit.preflight.checks.types import Evidence, NodeFacts, Tier, about, check
from clusterkit.preflight.probes.host import system
from clusterkit.preflight.probes.host.container import PROBE, is_file
from clusterkit.transport.probe import Missing, PreflightJob

_LOOK = {"docker": "docker version", "apptainer": "apptainer --version"}


def _no_container(job: PreflightJob) -> str | None:
    return "the job runs in no container" if job.container_runtime is None else None


@check("ENV001", "env-runtime", PROBE, tier=Tier.ROUND_TRIP, skip_if=_no_container)
@about(
    what="The container runtime of the job is installed, answers, and is the same on all nodes.",
    why="A node without it, or with a daemon that does not answer or let you in, ends the job at"
    " its start.",
    how="docker version (the server's part), apptainer --version, or enroot version.",
    fix="Install or start it there; for Docker your account has to be in the group `docker`.",
    source="Docker, post-installation steps; NVIDIA pyxis needs enroot on every node",
)
def _runtime(evidence: Evidence) -> Results:
    tool, working = evidence.job.container_runtime or "", []
    name = "enroot, which pyxis needs," if tool == "pyxis" else tool
    advice = Advice(
        hint="install it there, start its daemon, or let your account use it",
        command=_LOOK.get(tool, "enroot version"),
    )
    for node in evidence.nodes:
        facts = node.of(PROBE)
        if isinstance(facts, Missing):
            yield node.name, missing(facts)
        elif not facts.installed:
            yield node.name, advice.fail(f"{name} is not installed")
        elif not facts.version:
            yield node.name, advice.fail(f"{name} does not work", facts.problem)
        else:
            working.append(node)
    yield from uniform(
        Evidence(job=evidence.job, nodes=tuple(working)),
        PROBE,
        lambda container: container.version or None,
        what=tool,
        odd=Verdict.WARN,
        hint="install the same version on all nodes",
    )


def _no_toolkit(job: PreflightJob) -> str | None:
    needs_none = "apptainer needs no toolkit" if job.container_runtime == "apptainer" else None
    return needs_none or _no_container(job)


@check("ENV002", "env-toolkit", PROBE, system.PROBE, skip_if=_no_toolkit)
@about(
    what="NVIDIA's container toolkit is on every node with NVIDIA GPUs.",
    why="Without it `docker run --gpus` ends with `could not select device driver`, and enroot"
    " starts containers that see no GPU. Apptainer's --nv needs no toolkit.",
    how="nvidia-container-cli --version, else nvidia-ctk --version.",
    fix="Install nvidia-container-toolkit, nvidia-ctk runtime configure --runtime=docker, restart"
    " Docker.",
    source="NVIDIA Container Toolkit, installation guide",
)
def _toolkit(evidence: Evidence) -> Results:
    for node in evidence.nodes:
        yield node.name, _toolkit_of(node)


def _toolkit_of(node: NodeFacts) -> Result:
    machine, container = node.of(system.PROBE), node.of(PROBE)
    if isinstance(machine, Missing):
        return missing(machine)
    if machine.nvidia_gpus == 0:
        return skip("no NVIDIA GPU")
    if isinstance(container, Missing):
        return missing(container)
    if not container.installed:
        return unknown("the runtime is not installed")
    if container.toolkit:
        return ok("the NVIDIA container toolkit is there", container.toolkit)
    return fail(
        "the NVIDIA container toolkit is not installed",
        hint="install nvidia-container-toolkit and configure the runtime with nvidia-ctk",
        command="nvidia-container-cli info",
    )


_DISTRIBUTE = "clusterkit images distribute"


def _no_image(job: PreflightJob) -> str | None:
    return None if job.container_runtime and job.image else "the job has no image"


@check("ENV003", "env-image", PROBE, tier=Tier.ROUND_TRIP, skip_if=_no_image)
@about(
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
def _image(evidence: Evidence) -> Results:
    job, present = evidence.job, []
    for node in evidence.nodes:
        facts = node.of(PROBE)
        if isinstance(facts, Missing):
            yield node.name, missing(facts)
        elif not facts.installed:
            yield node.name, unknown("the runtime is not installed")
        elif facts.digest is None:
            yield node.name, skip("fetched when the job starts")
        elif not facts.digest and not facts.version:
            yield node.name, unknown("the runtime does not work")
        elif not facts.digest:
            yield node.name, _lacking(job)
        else:
            present.append(node)
    yield from _compared(job, tuple(present))


def _compared(job: PreflightJob, present: tuple[NodeFacts, ...]) -> Results:
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
    advice = Advice(
        hint="bring that build to the nodes, or pull theirs here",
        command=f"{_DISTRIBUTE} {shlex.quote(job.image or '')}",
    )
    for name, digest in digests.items():
        if digest == here:
            yield name, ok(f"image {digest}")
        else:
            differs = f"image is {digest}, and {here} on the machine that asks"
            yield name, advice.result(odd, differs)


def _digest_of(node: NodeFacts) -> str | None:
    facts = node.of(PROBE)
    return None if isinstance(facts, Missing) else facts.digest


def _lacking(job: PreflightJob) -> Result:
    # Docker pulls what it lacks; a file that is not there, nobody brings.
    pulled, image = job.container_runtime == "docker", shlex.quote(job.image or "")
    look = f"ls -l {image}" if is_file(job) else "enroot list"
    bring = f"{_DISTRIBUTE} {image}" if job.image_digest else f"docker pull {image}"
    advice = Advice(
        hint="bring it to the node before the job starts", command=bring if pulled else look
    )
    verdict = Verdict.WARN if pulled else Verdict.FAIL
    return advice.result(verdict, f"image {job.image} is not there")
