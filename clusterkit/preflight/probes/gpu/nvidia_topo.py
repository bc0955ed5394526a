"""The topology matrix of a node, by `nvidia-smi topo -m`."""

from __future__ import annotations

from functools import lru_cache

from clusterkit.preflight.probes.gpu.nvidia import nvidia_probe
from clusterkit.preflight.topology import NoMatrix, Topology, View, parse_topology
from clusterkit.transport.probe import Unparsed

_SNIPPET = """said=$(nvidia-smi topo -m) || { c=$?; broken; printf '%s\\n' "$said" >&2; exit "$c"; }
printf '%s\\n' "$said"
"""


@lru_cache(maxsize=4096)
def parse(text: str) -> Topology:
    """Read the matrix; nodes of one model print the same one, so each is read once."""
    try:
        return parse_topology(text, view=View.LINKS)
    except NoMatrix as error:
        raise Unparsed(str(error)) from None


PROBE = nvidia_probe("nvidia-topo", _SNIPPET, parse)
