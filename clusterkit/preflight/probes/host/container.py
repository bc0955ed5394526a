"""The container runtime of the job, NVIDIA's toolkit for it, and the image."""

from __future__ import annotations

from dataclasses import dataclass

from clusterkit.core.shell import quote
from clusterkit.preflight.probes.net.pairs import read_pairs
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed

# Nothing is pulled here: that a thousand nodes fetch an image at once is an outage of its own.
_DOCKER = """
if said=$(docker version --format '{{.Server.Version}}' 2>&1); then echo "version=$said"
else echo "version="; echo "problem=$(echo "$said" | tail -n 1)"; fi
echo "digest=$(docker image inspect --format '{{.Id}}' @IMAGE@ 2>/dev/null)"
"""
_OTHER = """
echo "version=$(@TOOL@ @VERSION@ 2>/dev/null | tail -n 1)"
"""
# A whole image of 20 GB takes minutes to read, and from all nodes at once. Both of its ends hold
# what tells builds apart: the identity and creation time of a SIF, the table of a squashfs.
_FILE = """
image=@IMAGE@
if [ -f "$image" ]; then
size=$(wc -c <"$image")
sum=$({ head -c 1048576 "$image"; tail -c 1048576 "$image"; } | sha256sum | cut -c 1-16)
echo "digest=$((size)) bytes, ends $sum"
else echo "digest="
fi
"""
_ENROOT_NAME = """
if enroot list 2>/dev/null | grep -qxF -- @IMAGE@; then echo "digest=unpacked"; else echo "digest="
fi
"""
_TOOLKIT = """
echo "toolkit=$({ nvidia-container-cli --version || nvidia-ctk --version; } 2>/dev/null |
sed -n '1s/.*[ :] *//p')"
echo end
"""

_VERSION = {"apptainer": "--version", "enroot": "version"}


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
    body = _DOCKER if tool == "docker" else _OTHER
    if tool != "docker" and is_file(job):
        body += _FILE
    elif tool == "enroot" and job.container_runtime == "enroot" and job.image:
        body += _ENROOT_NAME
    begin = "command -v @TOOL@ >/dev/null || { echo absent=1; echo end; exit 0; }\n"
    text = begin + body + _TOOLKIT
    text = text.replace("@TOOL@", quote(tool)).replace("@VERSION@", _VERSION.get(tool, "--version"))
    return text.replace("@IMAGE@", quote(job.image or ""))


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
