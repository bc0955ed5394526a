"""The file that tells NCCL the topology of a virtual machine, where there is one."""

from __future__ import annotations

from clusterkit.core.shell import quote
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed, first_line

VARIABLE = "NCCL_TOPO_FILE"
_USUAL = "/var/run/nvidia-topologyd/virtualTopology.xml"
"""NCCL reads it where the variable is not set (NCCL source, src/graph/topo.cc)."""


def _command(job: PreflightJob) -> str:
    file = quote(job.env.get(VARIABLE) or _USUAL)
    return f'f={file}\n[ -r "$f" ] || {{ echo \'no readable file\'; exit 77; }}\necho "file $f"\n'


def parse(text: str) -> str:
    """Return the path in `file PATH`."""
    word, _, path = text.strip().partition(" ")
    if word != "file" or not path:
        raise Unparsed(f"no file: {first_line(text)[:60]!r}")
    return path


PROBE = Probe(name="nccl-topo-file", command=_command, parse=parse)
