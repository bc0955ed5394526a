"""ENV002: whether containers on the node can get its NVIDIA GPUs."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    NodeFacts,
    Ruling,
    missing,
    passed,
)
from clusterkit.preflight.probes.host.container import PROBE
from clusterkit.preflight.probes.host.system import PROBE as SYSTEM
from clusterkit.transport.probe import Missing

ABOUT = About(
    what="NVIDIA's container toolkit is on every node with NVIDIA GPUs.",
    why="Without it `docker run --gpus` ends with `could not select device driver`, and enroot"
    " starts containers that see no GPU. Apptainer's --nv needs no toolkit.",
    how="nvidia-container-cli --version, else nvidia-ctk --version.",
    fix="Install nvidia-container-toolkit, nvidia-ctk runtime configure --runtime=docker, restart"
    " Docker.",
    source="NVIDIA Container Toolkit, installation guide",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail GPU nodes without the toolkit."""
    if evidence.job.container_runtime is None:
        yield None, Ruling(verdict=Verdict.SKIP, summary="the job runs in no container")
    elif evidence.job.container_runtime == "apptainer":
        yield None, Ruling(verdict=Verdict.SKIP, summary="apptainer needs no toolkit")
    else:
        for node in evidence.nodes:
            yield node.name, _rule(node)


def _rule(node: NodeFacts) -> Ruling:
    system, container = node.of(SYSTEM), node.of(PROBE)
    if isinstance(system, Missing):
        return missing(system)
    if system.nvidia_gpus == 0:
        return Ruling(verdict=Verdict.SKIP, summary="no NVIDIA GPU")
    if isinstance(container, Missing):
        return missing(container)
    if not container.installed:
        return Ruling(verdict=Verdict.UNKNOWN, summary="the runtime is not installed")
    if container.toolkit:
        return passed("the NVIDIA container toolkit is there", container.toolkit)
    return Ruling(
        verdict=Verdict.FAIL,
        summary="the NVIDIA container toolkit is not installed",
        hint="install nvidia-container-toolkit and configure the runtime with nvidia-ctk",
        command="nvidia-container-cli info",
    )


CHECK = Check(id="ENV002", name="env-toolkit", about=ABOUT, probes=(PROBE, SYSTEM), judge=judge)
