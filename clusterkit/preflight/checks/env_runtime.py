"""ENV001: whether the container runtime of the job works on every node."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
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
from clusterkit.preflight.probes.host.container import PROBE, Container
from clusterkit.transport.probe import Missing

_LOOK = {"docker": "docker version", "apptainer": "apptainer --version"}

ABOUT = About(
    what="The container runtime of the job is installed, answers, and is the same on all nodes.",
    why="A node without it, or with a daemon that does not answer or let you in, ends the job at"
    " its start.",
    how="docker version (the server's part), apptainer --version, or enroot version.",
    fix="Install or start it there; for Docker your account has to be in the group `docker`.",
    source="Docker, post-installation steps; NVIDIA pyxis needs enroot on every node",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail nodes on which the runtime does not work; warn of other versions."""
    tool = evidence.job.container_runtime
    if tool is None:
        yield None, Ruling(verdict=Verdict.SKIP, summary="the job runs in no container")
        return
    working = []
    for node in evidence.nodes:
        facts = node.of(PROBE)
        if isinstance(facts, Missing):
            yield node.name, missing(facts)
        elif not facts.installed:
            yield node.name, _bad(tool, "is not installed", "")
        elif not facts.version:
            yield node.name, _bad(tool, "does not work", facts.problem)
        else:
            working.append(node)
    yield from uniform(
        Evidence(job=evidence.job, nodes=tuple(working)),
        PROBE,
        _version,
        what=tool,
        odd=Verdict.WARN,
        hint="install the same version on all nodes",
    )


def _version(container: Container) -> str | None:
    return container.version or None


def _bad(tool: str, what: str, evidence: str) -> Ruling:
    return Ruling(
        verdict=Verdict.FAIL,
        summary=f"{'enroot, which pyxis needs,' if tool == 'pyxis' else tool} {what}",
        evidence=evidence,
        hint="install it there, start its daemon, or let your account use it",
        command=_LOOK.get(tool, "enroot version"),
    )


CHECK = Check(
    id="ENV001",
    name="env-runtime",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
