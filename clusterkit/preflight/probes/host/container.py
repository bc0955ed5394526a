"""The container runtime of the job, NVIDIA's toolkit for it, and the image."""

from __future__ import annotations

from dataclasses import dataclass

from clusterkit.core.data import read_snippet
from clusterkit.core.shell import quote
from clusterkit.preflight.probes.snippets import read_pairs
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What a node has for the job's containers."""

    installed: bool
    version: str = ""
    """Of the daemon, for Docker; empty where it does not answer."""
    problem: str = ""
    """What the runtime says where it is installed and does not work."""
    digest: str | None = None
    """Of the image: empty where the node does not have it, None where it was not looked for."""
    toolkit: str = ""
    """Version of libnvidia-container or nvidia-ctk; empty where there is neither."""


def _command(job: PreflightJob) -> str | None:
    tool = job.container_runtime
    if tool is None:
        return None
    if tool == "pyxis":
        # srun enters the image, so there is nothing on the node but a plugin of Slurm and enroot.
        tool = "enroot"
    form = "file" if is_file(job) else ""
    if tool == "enroot" and job.container_runtime == "enroot" and job.image and not form:
        form = "name"
    return read_snippet(
        "container", tool=quote(tool), image=quote(job.image or ""), form=quote(form)
    )


def is_file(job: PreflightJob) -> bool:
    """Tell whether the image is a file (SIF, squashfs) and not a name in a registry or a store."""
    image = job.image or ""
    return job.container_runtime != "docker" and (
        image.startswith(("/", "./", "../", "~")) or image.endswith((".sif", ".sqsh", ".squashfs"))
    )


def parse(text: str) -> Container:
    """Read the pairs of the snippet."""
    pairs = read_pairs(text)
    if "absent" in pairs:
        return Container(installed=False)
    if "version" not in pairs:
        raise Unparsed("version is missing")
    return Container(
        installed=True,
        version=pairs["version"],
        problem=pairs.get("problem", ""),
        digest=pairs.get("digest"),
        toolkit=pairs.get("toolkit", ""),
    )


PROBE = Probe(name="container", command=_command, parse=parse, timeout_s=20.0)
