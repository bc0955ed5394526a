"""ENV: container runtime, NVIDIA's toolkit for it, and the image of the job."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import each_machine, known, uniform
from clusterkit.preflight.checks.results import Result, Results, advice, ok, skip, unknown
from clusterkit.preflight.checks.types import Evidence, NodeFacts, Tier, check
from clusterkit.preflight.probes.host import system
from clusterkit.preflight.probes.host.container import PROBE, Container, is_file
from clusterkit.transport.probe import PreflightJob


def _no_container(job: PreflightJob) -> str | None:
    return "the job runs in no container" if job.container_runtime is None else None


@check("ENV001", "env-runtime", PROBE, tier=Tier.ROUND_TRIP, skip_if=_no_container)
def _runtime(evidence: Evidence) -> Results:
    tool = evidence.job.container_runtime or ""
    name = "enroot, which pyxis needs," if tool == "pyxis" else tool
    wrong = advice("ENV001", tool)

    def version(facts: Container) -> str | Result:
        if not facts.installed:
            return wrong.fail(f"{name} is not installed")
        return facts.version or wrong.fail(f"{name} does not work", facts.problem)

    hint = advice("ENV001", "same").hint
    return uniform(evidence, PROBE, version, what=tool, odd=Verdict.WARN, hint=hint)


def _no_toolkit(job: PreflightJob) -> str | None:
    needs_none = "apptainer needs no toolkit" if job.container_runtime == "apptainer" else None
    return needs_none or _no_container(job)


@check("ENV002", "env-toolkit", PROBE, system.PROBE, skip_if=_no_toolkit)
@each_machine
def _toolkit(node: NodeFacts) -> Result:
    if node.need(system.PROBE).nvidia_gpus == 0:
        return skip("no NVIDIA GPU")
    container = node.need(PROBE)
    if not container.installed:
        return unknown("the runtime is not installed")
    if container.toolkit:
        return ok("the NVIDIA container toolkit is there", container.toolkit)
    return advice("ENV002").fail("the NVIDIA container toolkit is not installed")


def _no_image(job: PreflightJob) -> str | None:
    return None if job.container_runtime and job.image else "the job has no image"


@check("ENV003", "env-image", PROBE, tier=Tier.ROUND_TRIP, skip_if=_no_image)
def _image(evidence: Evidence) -> Results:
    job, here = evidence.job, evidence.job.image_digest
    facts = known(evidence, PROBE)[0].values()
    builds = {found.digest for found in facts if found.installed and found.digest}
    # Where no node has the build of this machine, it may be this machine that is behind.
    odd = Verdict.FAIL if here in builds or len(builds) > 1 else Verdict.WARN
    theirs = advice("ENV003", "other", image=job.image)

    def build(found: Container) -> str | Result:
        if not found.installed:
            return unknown("the runtime is not installed")
        if found.digest is None:
            return skip("fetched when the job starts")
        if not found.digest:
            return _lacking(job) if found.version else unknown("the runtime does not work")
        if here in {None, found.digest}:
            return found.digest if here is None else ok(f"image {here}")
        summary = f"image is {found.digest}, and {here} on the machine that asks"
        return theirs.result(odd, summary)

    what, hint = "image file" if is_file(job) else "image", advice("ENV003").hint
    return uniform(evidence, PROBE, build, what=what, odd=Verdict.FAIL, hint=hint)


def _lacking(job: PreflightJob) -> Result:
    # Docker pulls what it lacks; a file that is missing, nobody brings.
    pulled = job.container_runtime == "docker"
    if pulled:
        case = "distribute" if job.image_digest else "pull"
    else:
        case = "file" if is_file(job) else "enroot"
    verdict = Verdict.WARN if pulled else Verdict.FAIL
    return advice("ENV003", case, image=job.image).result(verdict, f"image {job.image} not found")
